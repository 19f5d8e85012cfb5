// The two products for few query rows, as in decoding: lanes along the width instead of along the queries, so that a key or value
// row is read once, straight through, for all rows that share it, halves as such. The work is then bound by memory.
#pragma once
#include "tiles.h"

namespace regard {
namespace {

// As many rows as leave at least half of a vector's lanes empty in tiles.h.
template <class F> constexpr int few = Lanes<F>::N / 2;

template <class Rows> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<const Bfloat16*> = true;

// A vector of numbers of F, from F or from halves.
template <class F>
inline Vector<F> widened(const F* from) { return load(from); }
// Compilers take four instructions for what is one where there is AVX2 (lanes of eight) or AVX-512 (sixteen): a third of the time.
template <class F>
inline Integers<F> half_bits(const uint16_t* from) {
#if defined(__AVX512F__)
  if constexpr (Lanes<F>::N == 16) return (Integers<F>)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
#if defined(__AVX2__)
  if constexpr (Lanes<F>::N == 8) return (Integers<F>)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  typedef uint16_t H __attribute__((vector_size(2 * Lanes<F>::N), aligned(2), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const H*>(from), Integers<F>);
}
template <class F>
inline Vector<F> widened(const Bfloat16* from) { return (Vector<F>)(half_bits<F>(&from->bits) << 16); }
template <class F>
inline Vector<F> widened(const Float16* from) {  // as in numbers.h
#if defined(__F16C__)
  if constexpr (Lanes<F>::N == 8) return (Vector<F>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
#if defined(__AVX512F__)
  if constexpr (Lanes<F>::N == 16) return (Vector<F>)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
  Integers<F> bits = half_bits<F>(&from->bits), magnitude = (bits & 0x7fff) << 13;
  Integers<F> finite = (Integers<F>)((Vector<F>)magnitude * splat(F(0x1p112f)));
  return (Vector<F>)((magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : finite) | (bits & 0x8000) << 16);
}

// Rows of numbers as they lie, read by run(pointer to F or to halves).
template <class F, class Run>
inline void with_rows(const void* rows, Type type, Run run) {
  if constexpr (sizeof(F) == 4) {
    if (type == bfloat16) return run(static_cast<const Bfloat16*>(rows));
    if (type == float16) return run(static_cast<const Float16*>(rows));
  }
  run(static_cast<const F*>(rows));
}

// Where a lane's bit `half` is set b, else a, with the two lanes that differ in this bit added up.
template <int half, class V, int... l>
inline V folded(V a, V b, Sequence<l...>) {
  constexpr int N = sizeof...(l);
  return __builtin_shufflevector(a, b, (l & half ? N + l : l)...) + __builtin_shufflevector(a, b, (l & half ? N + (l ^ half) : l ^ half)...);
}

// Lane l of the result is the sum of the lanes of x[l]: half as many vectors each time, with two numbers of each in a lane.
template <class F, int half = Lanes<F>::N / 2>
inline Vector<F> totals(const Vector<F>* x) {
  Vector<F> y[half];
  for (int i = 0; i < half; ++i) y[i] = folded<half>(x[i], x[i + half], typename UpTo<Lanes<F>::N>::Type());
  if constexpr (half == 1) return y[0];
  else return totals<F, half / 2>(y);
}

// Asks for a row of the next block while this one is worked on: in one go they would make everybody wait.
template <class E>
inline void fetch(const E* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += 64 / int64_t(sizeof(E))) __builtin_prefetch(row + c, 0, 2);
}

// s[j][row] = k[j] . q[row] for keys [from, to), multiples of step; q is row-major. As many sums run at once as a vector has
// lanes; `slots` is the power of two that `rows` fit in.
template <int rows, int slots, class F, class E, class Q>
[[gnu::noinline]] void score_rows(const E* k, int64_t k_row, const Q* q, int64_t D, F* s, int from, int to, bool more) {
  constexpr int N = Lanes<F>::N, keys = N / slots < step ? N / slots : step;
  constexpr bool pairs = has_pairs && is_bfloat16<const E*> && is_bfloat16<const Q*>;
  for (int j = from; j < to; j += keys) {
    Vector<F> sum[N] = {};
    const E* row = k + j * k_row;
    for (int r = 0; more && r < keys; ++r) fetch(row + (block + r) * k_row, D);
    int64_t d = 0;
    if constexpr (pairs)
#pragma GCC unroll 1
      for (; d + 2 * N <= D; d += 2 * N) {
        Integers<F> x[rows], y;
        for (int i = 0; i < rows; ++i) memcpy(&x[i], q + i * D + d, sizeof x[i]);
        for (int r = 0; r < keys; ++r) {
          memcpy(&y, row + r * k_row + d, sizeof y);
          for (int i = 0; i < rows; ++i) sum[r * slots + i] = add_pairs(sum[r * slots + i], x[i], y);
        }
      }
#pragma GCC unroll 1
    for (; d + N <= D; d += N) {
      Vector<F> x[rows];
      for (int i = 0; i < rows; ++i) x[i] = widened<F>(q + i * D + d);
      for (int r = 0; r < keys; ++r) {
        Vector<F> y = widened<F>(row + r * k_row + d);
        for (int i = 0; i < rows; ++i) sum[r * slots + i] += x[i] * y;
      }
    }
    F out[N];
    store(out, totals<F>(sum));
    for (int r = 0; r < keys; ++r) {
      for (int64_t c = d; c < D; ++c)
        for (int i = 0; i < rows; ++i) out[r * slots + i] += F(row[r * k_row + c]) * F(q[i * D + c]);
      memcpy(s + (j + r) * width<F>, out + r * slots, rows * sizeof(F));
    }
  }
}

// Vectors of numbers of F from a row, `wide` of them side by side. Of bfloat16 a load gives two, the numbers at even places and those
// at odd ones, which takes half the instructions; `in_order` undoes it.
template <class F, int wide, class E>
inline void read_wide(const E* from, Vector<F>* x) {
  constexpr int N = Lanes<F>::N;
  int n = 0;
  for (; is_bfloat16<const E*> && n + 1 < wide; n += 2) {
    Integers<F> pairs;
    memcpy(&pairs, from + n * N, sizeof pairs);
    x[n] = (Vector<F>)(pairs << 16), x[n + 1] = (Vector<F>)(pairs & -0x10000);
  }
  for (; n < wide; ++n) x[n] = widened<F>(from + n * N);
}
template <class V, int... l>
inline void in_order(V& even, V& odd, Sequence<l...>) {
  constexpr int N = sizeof...(l);
  V first = __builtin_shufflevector(even, odd, (l % 2 * N + l / 2)...);
  odd = __builtin_shufflevector(even, odd, (l % 2 * N + N / 2 + l / 2)...), even = first;
}

// o[row] = o[row] * alpha[row] + sum over keys [from, to) of p[j][row] * v[j]; `columns` is a multiple of a vector.
template <int rows, int wide, class F, class E>
inline int64_t value_columns(const E* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t c, int64_t columns, int from, int to, bool more) {
  constexpr int N = Lanes<F>::N;
  for (; c + wide * N <= columns; c += wide * N) {
    // The next block is fetched as it lies, if its rows touch: memory gives whole pages faster than every eighth line of them.
    const bool touch = v_row == columns;
    const E* next = v + block * v_row + (touch ? c * block : c);
    const int64_t next_row = touch ? wide * N : v_row;
    Vector<F> sum[rows][wide] = {};
#pragma GCC unroll 1
    for (int j = from; j < to; ++j) {
      Vector<F> x[wide];
      if (more) fetch(next + j * next_row, wide * N);
      read_wide<F, wide>(v + j * v_row + c, x);
      for (int i = 0; i < rows; ++i) {
        Vector<F> y = splat(p[j * width<F> + i]);
        for (int n = 0; n < wide; ++n) sum[i][n] += y * x[n];
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int n = 0; is_bfloat16<const E*> && n + 1 < wide; n += 2) in_order(sum[i][n], sum[i][n + 1], typename UpTo<N>::Type());
      for (int n = 0; n < wide; ++n) {
        F* at = o + i * columns + c + n * N;
        store(at, load(at) * splat(alpha[i]) + sum[i][n]);
      }
    }
  }
  return c;
}

template <int rows, class F, class E>
[[gnu::noinline]] void value_rows(const E* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t columns, int from, int to, bool more) {
  constexpr int wide = rows > 2 && REGARD_REGISTERS == 16 ? 2 : 4;
  int64_t c = value_columns<rows, wide>(v, v_row, p, alpha, o, 0, columns, from, to, more);
  value_columns<rows, 1>(v, v_row, p, alpha, o, c, columns, from, to, more);
}

// Rows by fours, and what is left.
template <class F, class E, class Q>
void score_few(int rows, const E* k, int64_t k_row, const Q* q, int64_t D, F* s, int from, int to, bool more) {
  for (; rows >= 4 && few<F> >= 4; rows -= 4, q += 4 * D, s += 4) score_rows<few<F> >= 4 ? 4 : 1, few<F> >= 4 ? 4 : 1>(k, k_row, q, D, s, from, to, more);
  if (rows == 3 && few<F> >= 4) score_rows<few<F> >= 4 ? 3 : 1, few<F> >= 4 ? 4 : 1>(k, k_row, q, D, s, from, to, more);
  if (rows == 2 && few<F> >= 2) score_rows<few<F> >= 2 ? 2 : 1, few<F> >= 2 ? 2 : 1>(k, k_row, q, D, s, from, to, more);
  if (rows == 1) score_rows<1, 1>(k, k_row, q, D, s, from, to, more);
}

template <class F, class E>
void value_few(int rows, const E* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t columns, int from, int to, bool more) {
  for (; rows >= 4; rows -= 4, p += 4, alpha += 4, o += 4 * columns) value_rows<4>(v, v_row, p, alpha, o, columns, from, to, more);
  if (rows == 3) value_rows<3>(v, v_row, p, alpha, o, columns, from, to, more);
  if (rows == 2) value_rows<2>(v, v_row, p, alpha, o, columns, from, to, more);
  if (rows == 1) value_rows<1>(v, v_row, p, alpha, o, columns, from, to, more);
}

}  // namespace
}  // namespace regard
