// The online softmax of one panel and one block of keys (Milakov and Gimelshein 2018), and what may be done to scores before it.
#pragma once
#include "allowed.h"

namespace regard {
namespace {

constexpr double log2_e = 1.4426950408889634074;

// Order of the contract: scale, soft cap, bias. `slope`, where asked for, is what the cap multiplies gradients by. The last factor and
// the bias are in a loop of their own, so that the compiler fuses product and addition in every copy of this function, or in none.
template <int vectors, class F>
[[gnu::noinline]] void bend_scores(F* s, F scale, F softcap, const F* bias, int from, int to, F* slope = nullptr) {
  constexpr int N = Lanes<F>::N;
  for (int j = from; softcap != 0 && j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = j * width<F> + v * N;
      Vector<F> bent = tanh<F>(load(s + at) * splat(scale) / splat(softcap));
      if (slope) store(slope + at, splat(F(1)) - bent * bent);
      store(s + at, bent);
    }
  const Vector<F> factor = splat(softcap != 0 ? softcap : scale);
  auto each = [&](auto change) {
    for (int64_t j = from; j < to; ++j)
      for (int64_t at = j * width<F>; at < j * width<F> + vectors * N; at += N) store(s + at, change(at));
  };
  if (bias) each([&](int64_t at) { return load(s + at) * factor + load(bias + at); });
  else each([&](int64_t at) { return load(s + at) * factor; });
}

template <int vectors, class F>
[[gnu::noinline]] void mask_scores(F* s, const Words<F>& words, int from, int to) {
  constexpr int N = Lanes<F>::N;
  const Vector<F> never = splat(F(-INFINITY));
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      F* at = s + j * width<F> + v * N;
      store(at, may_attend(words, j, v) ? load(at) : never);
    }
}

// Scores become exp2((s - peak) * c); peak and sum move on, and alpha says by what factor earlier sums shrink.
// A row that has seen nothing has peak -inf: it is measured from 0 instead, as inf - inf would be NaN.
template <int vectors, class F>
[[gnu::noinline]] void exponentials(F* s, F c, F* peaks, F* sums, F* alphas, int from, int to) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V never = splat(F(-INFINITY)), factor = splat(c);
  V peak[vectors], base[vectors], sum[vectors];
  for (int v = 0; v < vectors; ++v) peak[v] = load(peaks + v * N);
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) peak[v] = larger(load(s + j * width<F> + v * N), peak[v]);
  for (int v = 0; v < vectors; ++v) {
    base[v] = peak[v] == never ? splat(F(0)) : peak[v];
    V alpha = exp2((load(peaks + v * N) - base[v]) * factor);
    store(alphas + v * N, alpha);
    store(peaks + v * N, peak[v]);
    sum[v] = splat(F(0));
  }
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      F* at = s + j * width<F> + v * N;
      V p = exp2((load(at) - base[v]) * factor);
      store(at, p);
      sum[v] = sum[v] + p;
    }
  for (int v = 0; v < vectors; ++v) store(sums + v * N, load(sums + v * N) * load(alphas + v * N) + sum[v]);
}

// The lse of a panel's rows, in two parts: the number of F nearest to it, in the units of scores, and what is left, in units of
// log 2. A weight is the difference of a score and an lse, which may both be in the hundreds: what rounding the lse loses would
// show in every weight of its row.
template <class F>
struct Logs {
  F base[width<F>], rest[width<F>];
  void set(int lane, double lse, double natural) {
    if (lse == -INFINITY) lse = 0;  // a row that attends nothing has no weights to rebuild
    base[lane] = F(lse / natural);
    rest[lane] = base[lane] - base[lane] == 0 ? F((lse - base[lane] * natural) * log2_e) : 0;
  }
};

// log2 of the weights of one vector of scores.
template <class F>
inline Vector<F> log_weights(Vector<F> s, F factor, const Logs<F>& logs, int lane) {
  return (s - load(logs.base + lane)) * splat(factor) - load(logs.rest + lane);
}

// Scores become weights, 0 where `words` (null: all may attend) says that a row may not.
template <int vectors, class F>
[[gnu::noinline]] void rebuild(F* s, F factor, const Logs<F>& logs, const Words<F>* words, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      F* at = s + j * width<F> + v * N;
      Vector<F> p = exp2(log_weights(load(at), factor, logs, v * N));
      if (words) p = may_attend(*words, j, v) ? p : splat(F(0));
      store(at, p);
    }
}

}  // namespace
}  // namespace regard
