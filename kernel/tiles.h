// The two tile products, queries in lanes: scores S^T = K Q^T and output O^T = V^T P^T.
//
// A panel is up to three vectors of query rows side by side. Keys and values are read in place, one number broadcast to all
// lanes; maximum, sums and masks then are vertical, and no row ever meets another. Register tile: `step` keys (or output
// columns) by three vectors, 12 or 24 sums in flight.
#pragma once
#include "lanes.h"

namespace regard {
namespace {

constexpr int step = REGARD_REGISTERS == 32 ? 8 : 4;
constexpr int block = 64;  // keys that are handled together; one bit a key in a word
template <class F> constexpr int width = 3 * Lanes<F>::N;  // lanes of a panel

// s[j] = k[j] . q, or `onto` what is there s[j] += k[j] . q, for keys [from, to), multiples of step. k has rows of D numbers; q and
// s are laid out by lane.
template <int vectors, bool onto, class F>
[[gnu::noinline]] void score_stretch(const F* k, int64_t k_row, const F* q, int64_t D, F* s, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int j = from; j < to; j += step) {
    Vector<F> sum[step][vectors] = {};
    const F* row = k + j * k_row;
#pragma GCC unroll 1
    for (int64_t d = 0; d < D; ++d) {
      Vector<F> x[vectors];
      for (int v = 0; v < vectors; ++v) x[v] = load(q + d * width<F> + v * N);
      for (int r = 0; r < step; ++r) {
        Vector<F> y = splat(row[r * k_row + d]);
        for (int v = 0; v < vectors; ++v) sum[r][v] += y * x[v];
      }
    }
    for (int r = 0; r < step; ++r)
      for (int v = 0; v < vectors; ++v) {
        F* at = s + (j + r) * width<F> + v * N;
        store(at, onto ? load(at) + sum[r][v] : sum[r][v]);
      }
  }
}

// s[j] = k[j] . q for keys [from, to). Some short sums lose less to rounding than one long sum.
template <int vectors, class F>
void score_tile(const F* k, int64_t k_row, const F* q, int64_t D, F* s, int from, int to) {
  const int64_t stretch = D < 64 ? 32 : D < 128 ? D / 2 : 64;
  score_stretch<vectors, false>(k, k_row, q, D < stretch ? D : stretch, s, from, to);
  for (int64_t d = stretch; d < D; d += stretch)
    score_stretch<vectors, true>(k + d, k_row, q + d * width<F>, D - d < stretch ? D - d : stretch, s, from, to);
}

// o[c] = o[c] * alpha + sum over keys [from, to) of v[j][c] * p[j], for `columns` columns, a multiple of step. The block's own
// sum starts at zero, which halves the error of one long sum.
template <int vectors, class F>
[[gnu::noinline]] void value_tile(const F* v, int64_t v_row, const F* p, const F* alpha, F* o, int64_t columns, int from,
                                  int to) {
  constexpr int N = Lanes<F>::N;
  for (int64_t c = 0; c < columns; c += step) {
    Vector<F> sum[step][vectors] = {};
    const F* row = v + c + from * v_row;
#pragma GCC unroll 1
    for (int j = from; j < to; ++j, row += v_row) {
      Vector<F> x[vectors];
      for (int i = 0; i < vectors; ++i) x[i] = load(p + j * width<F> + i * N);
      for (int r = 0; r < step; ++r) {
        Vector<F> y = splat(row[r]);
        for (int i = 0; i < vectors; ++i) sum[r][i] += y * x[i];
      }
    }
    for (int r = 0; r < step; ++r)
      for (int i = 0; i < vectors; ++i) {
        F* to_ = o + (c + r) * width<F> + i * N;
        store(to_, load(to_) * load(alpha + i * N) + sum[r][i]);
      }
  }
}

// The third product, of the backward pass: out[j] += sum over rows i of w[j][i] * x[i], for keys [from, to) and `columns` columns
// of row-major x and out. Here columns are in lanes, and a weight is broadcast.
template <int vectors, class F>
[[gnu::noinline]] void row_tile(const F* w, int rows, const F* x, int64_t x_row, F* out, int64_t out_row, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int j = from; j < to; j += step) {
    Vector<F> sum[step][vectors] = {};
    const F* weight = w + j * width<F>;
#pragma GCC unroll 1
    for (int i = 0; i < rows; ++i) {
      Vector<F> y[vectors];
      for (int v = 0; v < vectors; ++v) y[v] = load(x + i * x_row + v * N);
      for (int r = 0; r < step; ++r) {
        Vector<F> z = splat(weight[r * width<F> + i]);
        for (int v = 0; v < vectors; ++v) sum[r][v] += z * y[v];
      }
    }
    for (int r = 0; r < step; ++r)
      for (int v = 0; v < vectors; ++v) {
        F* at = out + (j + r) * out_row + v * N;
        store(at, load(at) + sum[r][v]);
      }
  }
}

// Rows of numbers by lane: to[column][lane] = from[lane][column] * factor, whole vectors of columns. Lanes without a row are 0.
template <class F>
void squares(const char* const* from, int rows, int64_t columns, F factor, F* to) {
  constexpr int N = Lanes<F>::N;
  for (int64_t c = 0; c < columns; c += N)
    for (int first = 0; first < width<F>; first += N) {
      Vector<F> x[N];
      for (int i = 0; i < N; ++i)
        x[i] = first + i < rows ? load(reinterpret_cast<const F*>(from[first + i]) + c) * splat(factor) : splat(F(0));
      if (first < rows) transpose<F>(x);
      for (int i = 0; i < N; ++i) store(to + (c + i) * width<F> + first, x[i]);
    }
}

}  // namespace
}  // namespace regard
