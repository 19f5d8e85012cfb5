// The keys that stand out in each row: a sorted list of the best for every lane, by weight or by lift.
#pragma once
#include "looks.h"

namespace regard {
namespace {

// By what key j is ranked, for one vector of rows: the weight (a NaN, which is a whole row's, above all), or lift. -inf: not ranked.
template <bool lift, class F>
inline Vector<F> rank_of(const Space<F>& s, const Rows<F>& panel, int64_t at, int64_t shift, const Words<F>* words, int j, int v) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V never = splat(F(-INFINITY)), zero = splat(F(0));
  V w = load(s.scores + j * width<F> + v * N), r = w == w ? w : splat(F(INFINITY));
  if constexpr (lift) {
    Integers<F> counted = load(panel.counted + v * N) > zero;
    int64_t d = shift + j + v * N;
    V own = counted ? w : zero;
    V key = (splat(s.received[at + j]) - own) * (counted ? splat(s.key_share[0][at + j]) : splat(s.key_share[1][at + j]));
    V distance = (load(s.along + d) - own) * (counted ? load(s.step_share[0] + d) : load(s.step_share[1] + d));
    key = key < zero ? zero : key, distance = distance < zero ? zero : distance;
    r = w - (key > distance ? key : distance) + (key - key) + (distance - distance);
    r = r == r ? r : never;
  }
  return !words ? r : may_attend(*words, j, v) ? r : never;
}

// Puts a key into its lane's list; of equals the earlier stays ahead. By weight the rank says all.
template <bool lift, class F>
void insert(const Best<F>& best, int64_t k, int lane, F rank, F weight, typename Lanes<F>::Bits key) {
  int64_t to = (k - 1) * width<F> + lane;
  for (; to >= width<F> && best.rank[to - width<F>] < rank; to -= width<F>) {
    int64_t from = to - width<F>;
    best.rank[to] = best.rank[from], best.key[to] = best.key[from];
    if (lift) best.weight[to] = best.weight[from];
  }
  best.rank[to] = rank, best.key[to] = key;
  if (lift) best.weight[to] = weight;
}

// The same in all lanes from `lane` on, where the key ranks high enough. From the last place up, so that none waits for another: a
// place gets what stood above it if the key goes further up, else the key if that ranks higher.
template <bool lift, class F>
void insert_all(const Best<F>& best, int64_t k, int lane, Vector<F> rank, Vector<F> weight, typename Lanes<F>::Bits number) {
  const Integers<F> key = Integers<F>{} + number;
  auto keys = [&](int64_t n) { Integers<F> x; memcpy(&x, best.key + n, sizeof x); return x; };
  auto put = [&](int64_t n, Vector<F> rank, Vector<F> weight, Integers<F> key) {
    store(best.rank + n, rank), memcpy(best.key + n, &key, sizeof key);
    if (lift) store(best.weight + n, weight);
  };
  int64_t n = (k - 1) * width<F> + lane;
  Vector<F> old = load(best.rank + n), old_weight = lift ? load(best.weight + n) : old;
  Integers<F> old_key = keys(n), here = rank > old;
  for (; n >= width<F>; n -= width<F>) {
    const int64_t up = n - width<F>;
    const Vector<F> above = load(best.rank + up), above_weight = lift ? load(best.weight + up) : above;
    const Integers<F> above_key = keys(up), further = rank > above;
    put(n, further ? above : here ? rank : old, further ? above_weight : here ? weight : old_weight, further ? above_key : here ? key : old_key);
    old = above, old_weight = above_weight, old_key = above_key, here = further;
  }
  put(n, here ? rank : old, here ? weight : old_weight, here ? key : old_key);
}

// Keeps the best keys of a panel and block, whose weights are there. Short lists are gone through for all lanes at once, long ones lane
// by lane.
template <int vectors, bool lift, class F>
[[gnu::noinline]] void keep_best(const Space<F>& s, const Rows<F>& panel, const Best<F>& best, int64_t k, int64_t at, int64_t shift,
                                 const Words<F>* words, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int v = 0; v < vectors; ++v) {
    const F *weights = s.scores + v * N, *least = best.rank + (k - 1) * width<F> + v * N;
    auto rank = [&](int j) { return rank_of<lift>(s, panel, at, shift, words, j, v); };
    for (int j = from; j < to; j += step) {
      Vector<F> ranks[step], most = splat(F(-INFINITY));
      for (int r = 0; r < step; ++r) ranks[r] = rank(j + r), most = larger(ranks[r], most);
      if (!any(most > load(least))) continue;
      unsigned hits = 0;  // one branch for some keys, as these are hard to foresee
      for (int r = 0; r < step; ++r) hits |= unsigned(any(ranks[r] > load(least))) << r;
      for (; hits; hits &= hits - 1) {
        const int r = j + __builtin_ctz(hits);
        const Vector<F> x = ranks[r - j];
        if (k <= 64) {
          insert_all<lift>(best, k, v * N, x, load(weights + r * width<F>), at + r);
          continue;
        }
        for (int i = 0; i < N; ++i)
          if (x[i] > least[i]) insert<lift>(best, k, v * N + i, x[i], weights[r * width<F> + i], at + r);
      }
    }
  }
}

template <bool lift, class F>
void rank_block(const Problem& p, const Space<F>& s, const Rows<F>& panel, const Best<F>& best, const Top& out, int64_t at,
                const Words<F>* words, int from, int to) {
  static constexpr decltype(&keep_best<1, lift, F>) keep[] = {keep_best<1, lift, F>, keep_best<2, lift, F>, keep_best<3, lift, F>};
  keep[(panel.rows - 1) / Lanes<F>::N](s, panel, best, out.k, at, at - panel.last + p.T - 1, words, from, to);
}

template <class F>
void write_best(const Problem& p, const Rows<F>& panel, const Best<F>& best, const Top& out, int64_t item, int64_t head) {
  for (int i = 0; i < panel.rows; ++i) {
    char* weights = const_cast<char*>(row_of(out.weights, p, item, head, panel.row[i].query));
    char* positions = const_cast<char*>(row_of(out.positions, p, item, head, panel.row[i].query));
    for (int64_t n = 0; n < out.k; ++n) {
      const int64_t from = n * width<F> + i, key = best.key[from];
      const F rank = best.rank[from];
      const bool none = rank == -INFINITY;
      write(weights + n * out.weights.column, out.weights.type, none ? 0 : out.beyond ? best.weight[from] : rank == INFINITY ? NAN : rank);
      integer_at(out.positions, positions, n) = none ? -1 : sizeof(F) == 4 ? key & 0xffffffff : key;
    }
  }
}

}  // namespace
}  // namespace regard
