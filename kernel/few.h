// The two products for few query rows, as in decoding: lanes along the width instead of along the queries, so that a key or value
// row is read once, straight through, for all rows that share it. The work is then bound by memory.
#pragma once
#include "tiles.h"

namespace regard {
namespace {

// As many rows as leave at least half of a vector's lanes empty in tiles.h.
template <class F> constexpr int few = Lanes<F>::N / 2;

template <class F>
inline F total(Vector<F> x) {
  constexpr int N = Lanes<F>::N;
  for (int half = N / 2; half; half /= 2) {
#if defined(__clang__)  // has no shuffle by a vector of places, but makes one of this
    Vector<F> from = x;
    for (int i = 0; i < N; ++i) from[i] = x[i ^ half];
    x = x + from;
#else
    Integers<F> other;
    for (int i = 0; i < N; ++i) other[i] = i ^ half;
    x = x + __builtin_shuffle(x, other);
#endif
  }
  return x[0];
}

// s[j][row] = k[j] . q[row] for keys [from, to), a multiple of 2; q is row-major.
template <int rows, class F>
inline void score_rows(const F* k, int64_t k_row, const F* q, int64_t D, F* s, int from, int to) {
  constexpr int N = Lanes<F>::N;
  const int64_t whole = D / N * N;
  for (int j = from; j < to; j += 2) {
    Vector<F> sum[2][rows] = {};
    const F* row = k + j * k_row;
    for (int64_t d = 0; d < whole; d += N)
      for (int r = 0; r < 2; ++r) {
        Vector<F> x = load(row + r * k_row + d);
        for (int i = 0; i < rows; ++i) sum[r][i] += x * load(q + i * D + d);
      }
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < rows; ++i) {
        F rest = 0;
        for (int64_t d = whole; d < D; ++d) rest += row[r * k_row + d] * q[i * D + d];
        s[(j + r) * width<F> + i] = total<F>(sum[r][i]) + rest;
      }
  }
}

// o[row] = o[row] * alpha[row] + sum over keys [from, to) of p[j][row] * v[j]; `columns` is a multiple of a vector.
template <int rows, class F>
inline void value_rows(const F* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t columns, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int64_t c = 0; c < columns; c += N) {
    Vector<F> sum[2][rows] = {};
    for (int j = from; j < to; j += 2)
      for (int r = 0; r < 2; ++r) {
        Vector<F> x = load(v + (j + r) * v_row + c);
        for (int i = 0; i < rows; ++i) sum[r][i] += x * splat(p[(j + r) * width<F> + i]);
      }
    for (int i = 0; i < rows; ++i) {
      F* at = o + i * columns + c;
      store(at, load(at) * splat(alpha[i]) + (sum[0][i] + sum[1][i]));
    }
  }
}

// Rows four at a time, then two, then one.
template <class F>
[[gnu::noinline]] void score_few(int rows, const F* k, int64_t k_row, const F* q, int64_t D, F* s, int from, int to) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) score_rows<4>(k, k_row, q + i * D, D, s + i, from, to);
  if (i + 2 <= rows) score_rows<2>(k, k_row, q + i * D, D, s + i, from, to), i += 2;
  if (i < rows) score_rows<1>(k, k_row, q + i * D, D, s + i, from, to);
}

template <class F>
[[gnu::noinline]] void value_few(int rows, const F* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t columns, int from,
                                 int to) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) value_rows<4>(v, v_row, p + i, alpha + i, o + i * columns, columns, from, to);
  if (i + 2 <= rows) value_rows<2>(v, v_row, p + i, alpha + i, o + i * columns, columns, from, to), i += 2;
  if (i < rows) value_rows<1>(v, v_row, p + i, alpha + i, o + i * columns, columns, from, to);
}

}  // namespace
}  // namespace regard
