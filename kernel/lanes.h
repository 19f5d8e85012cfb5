// Lanes: the compiler's own vectors of float and double, and the few functions that attention needs on them.
//
// This file and the ones after it are compiled once for each instruction set. Everything in them is internal to its object
// (an anonymous namespace, C headers only): a shared inline function would be kept once by the linker for all of them, perhaps
// in its AVX-512 form, and an older machine would stop at it.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(REGARD_WIDE) && defined(REGARD_MATRIX)  // what follows on any machine that has AVX2, for tests: matrix tiles in plain code ...
#define REGARD_NAMED(prefix) prefix##wide_amx
#define REGARD_NAME "wide_amx"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(REGARD_WIDE) && defined(REGARD_PAIRS)  // ... pairs ...
#define REGARD_NAMED(prefix) prefix##wide_bf16
#define REGARD_NAME "wide_bf16"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(REGARD_WIDE)  // ... and 64-byte lanes, the text of AVX-512
#define REGARD_NAMED(prefix) prefix##wide
#define REGARD_NAME "wide"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(REGARD_MATRIX)
#define REGARD_NAMED(prefix) prefix##amx
#define REGARD_NAME "amx"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(REGARD_PAIRS)
#define REGARD_NAMED(prefix) prefix##avx512_bf16
#define REGARD_NAME "avx512_bf16"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(__AVX512F__)
#define REGARD_NAMED(prefix) prefix##avx512
#define REGARD_NAME "avx512"
#define REGARD_BYTES 64
#define REGARD_REGISTERS 32
#elif defined(__AVX2__)
#define REGARD_NAMED(prefix) prefix##avx2
#define REGARD_NAME "avx2"
#define REGARD_BYTES 32
#define REGARD_REGISTERS 16
#else
#define REGARD_NAMED(prefix) prefix##portable
#define REGARD_NAME "portable"
#define REGARD_BYTES 16
#if defined(__aarch64__)
#define REGARD_REGISTERS 32
#else
#define REGARD_REGISTERS 16
#endif
#endif

#if defined(REGARD_MATRIX) || defined(REGARD_PAIRS)
#define REGARD_PIECES  // numbers are cut (pieces.h)
#endif

namespace regard {
namespace {

template <class F>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(REGARD_BYTES)));
  typedef float U __attribute__((vector_size(REGARD_BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(REGARD_BYTES)));
  using Bits = int32_t;
  static constexpr int N = REGARD_BYTES / 4;
};

template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(REGARD_BYTES)));
  typedef double U __attribute__((vector_size(REGARD_BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(REGARD_BYTES)));
  using Bits = int64_t;
  static constexpr int N = REGARD_BYTES / 8;
};

template <class F> using Vector = typename Lanes<F>::V;
template <class F> using Integers = typename Lanes<F>::I;

template <class F>
inline Vector<F> load(const F* from) { return *reinterpret_cast<const typename Lanes<F>::U*>(from); }
template <class F>
inline void store(F* to, Vector<F> x) { *reinterpret_cast<typename Lanes<F>::U*>(to) = x; }

// One number in every lane. Written out, so that the compiler sees a broadcast (V{} + x would cost an addition).
template <class F>
inline Vector<F> splat(F x) {
  constexpr int n = Lanes<F>::N;
  if constexpr (n == 16) return Vector<F>{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
  else if constexpr (n == 8) return Vector<F>{x, x, x, x, x, x, x, x};
  else if constexpr (n == 4) return Vector<F>{x, x, x, x};
  else return Vector<F>{x, x};
}

template <int... lanes>
struct Sequence {};
template <int n, int... lanes>
struct UpTo : UpTo<n - 1, n - 1, lanes...> {};
template <int... lanes>
struct UpTo<0, lanes...> { using Type = Sequence<lanes...>; };

// Swaps rows and columns of N vectors of N lanes, in place: first the halves that lie off the diagonal, then theirs, and so on.
template <class F, int half, int... l>
inline void transpose_step(Vector<F>* x, Sequence<l...>) {
  constexpr int N = Lanes<F>::N;
  for (int i = 0; i < N; ++i) {
    if (i & half) continue;
    Vector<F> a = x[i], b = x[i + half];
    x[i] = __builtin_shufflevector(a, b, (l & half ? N + (l ^ half) : l)...);
    x[i + half] = __builtin_shufflevector(a, b, (l & half ? N + l : l ^ half)...);
  }
}
template <class F, int half = Lanes<F>::N / 2>
inline void transpose(Vector<F>* x) {
  transpose_step<F, half>(x, typename UpTo<Lanes<F>::N>::Type());
  if constexpr (half > 1) transpose<F, half / 2>(x);
}

template <class V>
inline V larger(V a, V b) { return a > b ? a : b; }

// sum + the products of two numbers of bfloat16 by two in each lane: twice the work of a product of floats in the same time (Zen 4),
// and as exact. Subnormal numbers may count as 0.
#if defined(REGARD_PAIRS)
constexpr bool has_pairs = true;
inline Vector<float> add_pairs(Vector<float> sum, Integers<float> x, Integers<float> y) {
#if defined(__AVX512BF16__)
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#else  // the same in plain code, for tests on other machines
  auto low = [](Integers<float> pairs) { return (Vector<float>)(pairs << 16); };
  auto high = [](Integers<float> pairs) { return (Vector<float>)(pairs & -0x10000); };
  return sum + high(x) * high(y) + low(x) * low(y);
#endif
}
#else
constexpr bool has_pairs = false;
#endif

// Whether a bit is set in any lane.
template <class I>
inline bool any(I x) {
#if defined(__AVX512F__)
  if constexpr (sizeof x == 64) return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0;
#endif
#if defined(__AVX__)
  if constexpr (sizeof x == 32) return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#endif
  uint64_t words[sizeof x / 8], found = 0;
  memcpy(words, &x, sizeof x);
  for (uint64_t word : words) found |= word;
  return found != 0;
}

// 2**t for t <= 0 (a little above is fine): 0 for -inf, NaN for NaN. Adding `magic` leaves round(t) + bias in the low bits, which
// shifted are the power of two; a NaN or what is left of -inf passes through the product. Relative error 2e-9 before rounding.
inline Vector<float> exp2(Vector<float> t) {
  using V = Vector<float>;
  using I = Integers<float>;
  const V least = splat(-127.0f), magic = splat(0x1.8p23f + 127.0f);
  t = larger(least, t);
  V shifted = t + magic, r = t - (shifted - magic);
  V p = splat(0x1.41fbbcp-13f);
  p = p * r + splat(0x1.5f3e54p-10f);
  p = p * r + splat(0x1.3b2d4cp-7f);
  p = p * r + splat(0x1.c6aee8p-5f);
  p = p * r + splat(0x1.ebfbdcp-3f);
  p = p * r + splat(0x1.62e43p-1f);
  p = p * r + splat(1.0f);
  return p * (V)((I)shifted << 23);
}

// The same in double: the series of 2**r to r**13, whose rest is below 2e-17.
inline Vector<double> exp2(Vector<double> t) {
  using V = Vector<double>;
  using I = Integers<double>;
  const V least = splat(-1023.0), magic = splat(0x1.8p52 + 1023.0);
  t = larger(least, t);
  V shifted = t + magic, r = t - (shifted - magic), p = splat(1.3691488853904128e-12);
  const double series[] = {2.5678435993488206e-11, 4.4455382718708114e-10, 7.054911620801123e-09, 1.0178086009239699e-07,
                           1.3215486790144307e-06, 1.5252733804059840e-05, 1.5403530393381608e-04, 1.3333558146428443e-03,
                           9.6181291076284769e-03, 5.5504108664821580e-02, 2.4022650695910072e-01, 6.9314718055994531e-01, 1.0};
  for (double c : series) p = p * r + splat(c);
  return p * (V)((I)shifted << 52);
}

// tanh by exp2, and near zero by a series or a fraction that keeps relative precision (coefficients: Cephes, S. Moshier).
template <class F>
inline Vector<F> tanh(Vector<F> x) {
  using V = Vector<F>;
  const V log2e = splat(F(1.4426950408889634)), one = splat(F(1));
  V size = x < -x ? -x : x;
  V e = exp2(size * log2e * splat(F(-2)));
  V far = (one - e) / (one + e), s = x * x, near;
  if constexpr (sizeof(F) == 4) {
    near = splat(-5.70498872745e-3f);
    near = near * s + splat(2.06390887954e-2f);
    near = near * s + splat(-5.37397155531e-2f);
    near = near * s + splat(1.33314422036e-1f);
    near = near * s + splat(-3.33332819422e-1f);
    near = near * s * size + size;
  } else {
    V up = (splat(-9.64399179425052238628e-1) * s + splat(-9.92877231001918586564e1)) * s + splat(-1.61468768441708447952e3);
    V down = ((s + splat(1.12811678491632931402e2)) * s + splat(2.23548839060100448583e3)) * s + splat(4.84406305325125486048e3);
    near = size * s * (up / down) + size;
  }
  V magnitude = size < splat(F(0.625)) ? near : far;
  return x < splat(F(0)) ? -magnitude : magnitude;
}

}  // namespace
}  // namespace regard
