// The keys that stand out in each row: ranks of a block's weights, and a sorted list of the best for every lane.
#pragma once
#include "looks.h"

namespace regard {
namespace {

// By what keys are ranked: the weight (a NaN, which is a whole row's, above all), or lift. -inf: not ranked.
template <int vectors, class F>
[[gnu::noinline]] void rank_weights(const Space<F>& s, const Rows<F>& panel, bool lift, int64_t at, int64_t shift, const Words<F>* words,
                                    int from, int to) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V never = splat(F(-INFINITY)), zero = splat(F(0));
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      V w = load(s.scores + j * width<F> + v * N), r = w == w ? w : splat(F(INFINITY));
      if (lift) {
        Integers<F> counted = load(panel.counted + v * N) > zero;
        int64_t d = shift + j + v * N;
        V own = counted ? w : zero;
        V key = (splat(s.received[at + j]) - own) * (counted ? splat(s.key_share[0][at + j]) : splat(s.key_share[1][at + j]));
        V distance = (load(s.along + d) - own) * (counted ? load(s.step_share[0] + d) : load(s.step_share[1] + d));
        key = key < zero ? zero : key, distance = distance < zero ? zero : distance;
        r = w - (key > distance ? key : distance) + (key - key) + (distance - distance);
        r = r == r ? r : never;
      }
      if (words) r = may_attend(*words, j, v) ? r : never;
      store(s.rank + j * width<F> + v * N, r);
    }
}

// Puts a key into its lane's list; of equals the earlier stays ahead.
template <class F>
void insert(const Best<F>& best, int64_t k, int lane, F rank, F weight, typename Lanes<F>::Bits key) {
  int64_t to = (k - 1) * width<F> + lane;
  for (; to >= width<F> && best.rank[to - width<F>] < rank; to -= width<F>) {
    int64_t from = to - width<F>;
    best.rank[to] = best.rank[from], best.weight[to] = best.weight[from], best.key[to] = best.key[from];
  }
  best.rank[to] = rank, best.weight[to] = weight, best.key[to] = key;
}

// The same in all lanes from `lane` on, where the key ranks high enough. From the last place up, so that none waits for another: a
// place gets what stood above it if the key goes further up, else the key if that ranks higher.
template <class F>
void insert_all(const Best<F>& best, int64_t k, int lane, Vector<F> rank, Vector<F> weight, typename Lanes<F>::Bits number) {
  int64_t n = (k - 1) * width<F> + lane;
  const Integers<F> key = Integers<F>{} + number;
  Vector<F> old = load(best.rank + n), old_weight = load(best.weight + n);
  Integers<F> old_key, here = rank > old;
  memcpy(&old_key, best.key + n, sizeof key);
  for (; n >= width<F>; n -= width<F>) {
    Vector<F> above = load(best.rank + n - width<F>), above_weight = load(best.weight + n - width<F>);
    Integers<F> above_key, further = rank > above;
    memcpy(&above_key, best.key + n - width<F>, sizeof key);
    store(best.rank + n, further ? above : here ? rank : old);
    store(best.weight + n, further ? above_weight : here ? weight : old_weight);
    old_key = further ? above_key : here ? key : old_key;
    memcpy(best.key + n, &old_key, sizeof key);
    old = above, old_weight = above_weight, old_key = above_key, here = further;
  }
  store(best.rank + n, here ? rank : old), store(best.weight + n, here ? weight : old_weight);
  old_key = here ? key : old_key;
  memcpy(best.key + n, &old_key, sizeof key);
}

// Keeps the best of a block's keys. Short lists are gone through for all lanes at once, long ones lane by lane.
template <int vectors, class F>
[[gnu::noinline]] void keep_best(const Space<F>& s, const Best<F>& best, int64_t k, int64_t at, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int v = 0; v < vectors; ++v) {
    const F *ranks = s.rank + v * N, *weights = s.scores + v * N, *least = best.rank + (k - 1) * width<F> + v * N;
    for (int j = from; j < to; j += step) {
      Vector<F> most = load(ranks + j * width<F>);
      for (int r = 1; r < step; ++r) most = larger(load(ranks + (j + r) * width<F>), most);
      if (!any(most > load(least))) continue;
      for (int r = j; r < j + step; ++r) {
        Vector<F> rank = load(ranks + r * width<F>);
        if (!any(rank > load(least))) continue;
        if (k <= 16) {
          insert_all(best, k, v * N, rank, load(weights + r * width<F>), at + r);
          continue;
        }
        for (int i = 0; i < N; ++i)
          if (rank[i] > least[i]) insert(best, k, v * N + i, rank[i], weights[r * width<F> + i], at + r);
      }
    }
  }
}

// Ranks the weights of a panel and block, and keeps the best.
template <class F>
void rank_block(const Problem& p, const Space<F>& s, const Rows<F>& panel, const Best<F>& best, const Top& out, int64_t at,
                const Words<F>* words, int from, int to) {
  static constexpr decltype(&rank_weights<1, F>) rank[] = {rank_weights<1, F>, rank_weights<2, F>, rank_weights<3, F>};
  static constexpr decltype(&keep_best<1, F>) keep[] = {keep_best<1, F>, keep_best<2, F>, keep_best<3, F>};
  const int shape = (panel.rows - 1) / Lanes<F>::N;
  rank[shape](s, panel, out.beyond != nullptr, at, at - panel.last + p.T - 1, words, from, to);
  keep[shape](s, best, out.k, at, from, to);
}

template <class F>
void write_best(const Problem& p, const Rows<F>& panel, const Best<F>& best, const Top& out, int64_t item, int64_t head) {
  for (int i = 0; i < panel.rows; ++i) {
    char* weights = const_cast<char*>(row_of(out.weights, p, item, head, panel.row[i].query));
    char* positions = const_cast<char*>(row_of(out.positions, p, item, head, panel.row[i].query));
    for (int64_t n = 0; n < out.k; ++n) {
      int64_t from = n * width<F> + i, key = best.key[from];
      write(weights + n * out.weights.column, out.weights.type, best.weight[from]);
      integer_at(out.positions, positions, n) = best.rank[from] == -INFINITY ? -1 : sizeof(F) == 4 ? key & 0xffffffff : key;
    }
  }
}

}  // namespace
}  // namespace regard
