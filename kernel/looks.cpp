// What people ask of all weights, in one pass over them and without keeping any: sums by key and by distance, the spread of each
// row, and the keys that stand out.
//
// One item and head at a time. Within a block sums are of F; beyond it float64, in one order.
#include "maps.h"

namespace regard {
namespace {

// Adds one panel's weights for a block to the block's sums, and to each row's Σ w log2 w and Σ w on keys of its own id and behind one.
template <int vectors, class F>
[[gnu::noinline]] void add_weights(const Space<F>& s, const Rows<F>& panel, F factor, const Words<F>* words,
                                   const typename Lanes<F>::Bits* key_ids, F* spread, F* same, F* behind, int from, int to) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V zero = splat(F(0)), least = splat(F(-2000));  // w log w is 0 long before that
  V sum[vectors] = {}, own[vectors] = {}, after[vectors] = {}, counted[vectors];
  Integers<F> ids[vectors];
  for (int v = 0; v < vectors; ++v) counted[v] = load(panel.counted + v * N), memcpy(&ids[v], panel.id + v * N, sizeof ids[v]);
  for (int j = from; j < to; ++j) {
    V together = zero;
    for (int v = 0; v < vectors; ++v) {
      V t = log_weights(load(s.scores + j * width<F> + v * N), factor, panel.lse, v * N);
      V w = exp2(t), product = w * (t < least ? least : t);
      if (words) {
        Integers<F> may = may_attend(*words, j, v);
        w = may ? w : zero, product = may ? product : zero;
      }
      sum[v] += product;
      w = counted[v] > zero ? w : zero;
      together += w;
      F* at = s.by_distance + j + v * N;
      store(at, load(at) + w);
      if (key_ids) {
        own[v] += ids[v] == Integers<F>{} + key_ids[j] ? w : zero;
        after[v] += ids[v] == Integers<F>{} + key_ids[j - 1] ? w : zero;
      }
    }
    F* at = s.by_key + j * N;
    store(at, load(at) + together);
  }
  for (int v = 0; v < vectors; ++v) store(spread + v * N, sum[v]), store(same + v * N, own[v]), store(behind + v * N, after[v]);
}

// How many pairs of a panel and block are allowed, by key and by distance.
template <class F>
void count_pairs(const Problem& p, const Sums& sums, const Rows<F>& panel, const Words<F>* words, char* seen, char* met, int64_t at) {
  int64_t first = at - panel.last + p.T - 1;
  if (!words && panel.real == width<F>) {
    for (int j = 0; j < block; ++j) integer_at(sums.seen, seen, at + j) += width<F>;
    for (int x = 0; x < block + width<F> - 1; ++x) {
      int low = x - block + 1 > 0 ? x - block + 1 : 0, high = x < width<F> - 1 ? x : width<F> - 1;
      integer_at(sums.met, met, first + x) += high - low + 1;
    }
    return;
  }
  for (int i = 0; i < panel.rows; ++i) {
    if (panel.counted[i] == 0) continue;
    for (uint64_t word = words ? words->row[i] : ~uint64_t(0); word; word &= word - 1) {
      int j = __builtin_ctzll(word);
      ++integer_at(sums.seen, seen, at + j), ++integer_at(sums.met, met, first + j + i);
    }
  }
}

template <class F>
void sums(const Problem& p, const Sums& out, int64_t item, int64_t head, char* workspace) {
  constexpr int N = Lanes<F>::N;
  Space<F> s;
  Space<F>::carve(p, 0, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, item, head / (p.H / p.G), 0);
  auto here = [&](const Array& a) { return const_cast<char*>(at_item(a, p, item)) + head * a.head; };
  char *received = here(out.received), *seen = here(out.seen), *along = here(out.along), *met = here(out.met);
  double same = 0, behind = 0;
  typename Lanes<F>::Bits ids[1 + block];  // from the key before the block's first on
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  for (int64_t first = 0; first < p.T; first += s.panels * width<F>) {
    int used = 0;
    int64_t begin = p.S, end = 0;
    double spread[s.panels][width<F>] = {};
    for (int64_t r = first; r < p.T && used < s.panels; r += width<F>, ++used) {
      Rows<F>& panel = s.panel[used];
      set_rows(p, panel, out.real, out.row_ids, item, head, r, e, s.scratch());
      if (panel.begin < begin) begin = panel.begin;
      if (panel.end > end) end = panel.end;
    }
    for (int64_t at = begin / block * block; at < end; at += block) {
      int64_t count = p.S - at < block ? p.S - at : block;
      memset(s.by_key, 0, block * N * sizeof(F));
      for (int64_t j = out.same ? -1 : count; j < count; ++j)
        ids[1 + j] = at + j < 0 ? -1 : typename Lanes<F>::Bits(read_int(at_item(out.key_ids, p, item) + (at + j) * out.key_ids.column));
      for (int n = 0; n < used; ++n) {
        Rows<F>& panel = s.panel[n];
        bool all;
        int from, to;
        if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) continue;
        const Words<F>* words = all ? nullptr : s.words;
        F parts[width<F>], own[width<F>], after[width<F>];
        memset(s.by_distance, 0, (block + width<F>) * sizeof(F));
        static constexpr decltype(&add_weights<1, F>) shapes[] = {add_weights<1, F>, add_weights<2, F>, add_weights<3, F>};
        shapes[(panel.rows - 1) / N](s, panel, e.factor, words, out.same ? ids + 1 : nullptr, parts, own, after, from, to);
        for (int i = 0; i < panel.rows; ++i) spread[n][i] += parts[i], same += out.same ? own[i] : 0, behind += out.same ? after[i] : 0;
        int64_t shift = at - panel.last + p.T - 1;
        for (int64_t x = from; x < to + panel.rows - 1; ++x)
          if (s.by_distance[x] != 0) number_at(out.along, along, shift + x) += s.by_distance[x];
        count_pairs(p, out, panel, words, seen, met, at);
      }
      for (int64_t j = 0; j < count; ++j) {
        double sum = 0;
        for (int i = 0; i < N; ++i) sum += s.by_key[j * N + i];
        number_at(out.received, received, at + j) += sum;
      }
    }
    for (int n = 0; n < used; ++n)
      for (int i = 0; i < s.panel[n].rows; ++i)
        write(const_cast<char*>(row_of(out.entropy, p, item, head, s.panel[n].row[i].query)), float64, -spread[n][i] / log2_e);
  }
  if (out.same) write(here(out.same), float64, same), write(here(out.same) + out.same.column, float64, behind);
}

// ---- the keys that stand out ----

// By what keys are ranked: the weight (a NaN, which is a whole row's, above all), or lift. -inf: not ranked.
template <int vectors, class F>
[[gnu::noinline]] void rank_weights(const Space<F>& s, const Rows<F>& panel, bool lift, int64_t at, int64_t shift, const Words<F>* words,
                                    F* most, int from, int to) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V never = splat(F(-INFINITY)), zero = splat(F(0));
  V best[vectors];
  for (int v = 0; v < vectors; ++v) best[v] = never;
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
      best[v] = larger(r, best[v]);
    }
  for (int v = 0; v < vectors; ++v) store(most + v * N, best[v]);
}

// Puts a key into its lane's list, which is sorted; of equals the earlier stays ahead.
template <class F>
void insert(const Space<F>& s, int64_t k, int lane, F rank, F weight, int64_t key) {
  int64_t n = k - 1;
  for (; n > 0 && s.best[(n - 1) * width<F> + lane] < rank; --n) {
    int64_t to = n * width<F> + lane, from = to - width<F>;
    s.best[to] = s.best[from], s.best_weight[to] = s.best_weight[from], s.best_key[to] = s.best_key[from];
  }
  int64_t to = n * width<F> + lane;
  s.best[to] = rank, s.best_weight[to] = weight, s.best_key[to] = key;
}

// Totals and shares of the other rows as F, once for a head: 1 / (count - 1) for rows that count, 1 / count for those that do not.
template <class F>
void get_totals(const Problem& p, const Sums& sums, int64_t item, int64_t head, const Space<F>& s) {
  auto get = [&](const Array& total, const Array& count, int64_t size, F* to, F* const share[2]) {
    char *t = const_cast<char*>(at_item(total, p, item)) + head * total.head, *c = const_cast<char*>(at_item(count, p, item)) + head * count.head;
    for (int64_t n = 0; n < size; ++n) {
      int64_t met = integer_at(count, c, n);
      to[n] = F(number_at(total, t, n));
      for (int own = 0; own < 2; ++own) share[own][n] = met - 1 + own > 0 ? F(1.0 / double(met - 1 + own)) : F(NAN);
    }
  };
  get(sums.received, sums.seen, p.S, s.received, s.key_share);
  get(sums.along, sums.met, p.T + p.S - 1, s.along, s.step_share);
}

template <class F>
void top(const Problem& p, const Top& out, int64_t item, int64_t head, char* workspace) {
  constexpr int N = Lanes<F>::N;
  Space<F> s;
  Space<F>::carve(p, out.k, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, item, head / (p.H / p.G), 0);
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  if (out.beyond) get_totals(p, *out.beyond, item, head, s);
  for (int64_t first = 0; first < p.T; first += width<F>) {
    Rows<F>& panel = s.panel[0];
    set_rows(p, panel, out.beyond ? out.beyond->real : Array(), Array(), item, head, first, e, s.scratch());
    for (int64_t n = 0; n < out.k * width<F>; ++n) s.best[n] = -INFINITY, s.best_weight[n] = 0, s.best_key[n] = -1;
    for (int64_t at = panel.begin / block * block; at < panel.end; at += block) {
      bool all;
      int from, to;
      if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) continue;
      const Words<F>* words = all ? nullptr : s.words;
      pieces<F>(panel.rows).rebuild(s.scores, e.factor, panel.lse, words, from, to);
      F most[width<F>];
      static constexpr decltype(&rank_weights<1, F>) shapes[] = {rank_weights<1, F>, rank_weights<2, F>, rank_weights<3, F>};
      shapes[(panel.rows - 1) / N](s, panel, out.beyond != nullptr, at, at - panel.last + p.T - 1, words, most, from, to);
      for (int i = 0; i < panel.rows; ++i)
        if (most[i] > s.best[(out.k - 1) * width<F> + i])
          for (int j = from; j < to; ++j)
            if (F rank = s.rank[j * width<F> + i]; rank > s.best[(out.k - 1) * width<F> + i])
              insert(s, out.k, i, rank, s.scores[j * width<F> + i], at + j);
    }
    for (int i = 0; i < panel.rows; ++i) {
      char* weights = const_cast<char*>(row_of(out.weights, p, item, head, panel.row[i].query));
      char* positions = const_cast<char*>(row_of(out.positions, p, item, head, panel.row[i].query));
      for (int64_t n = 0; n < out.k; ++n) {
        write(weights + n * out.weights.column, out.weights.type, s.best_weight[n * width<F> + i]);
        integer_at(out.positions, positions, n) = s.best_key[n * width<F> + i];
      }
    }
  }
}

bool doubles(const Problem& p) { return p.query.type == float64; }

size_t workspace_bytes(const Problem& p, int64_t k) {
  return doubles(p) ? Space<double>::carve(p, k, nullptr, nullptr) : Space<float>::carve(p, k, nullptr, nullptr);
}
void sums_any(const Problem& p, const Sums& out, int64_t item, int64_t head, char* workspace) {
  Registers registers(p);
  doubles(p) ? sums<double>(p, out, item, head, workspace) : sums<float>(p, out, item, head, workspace);
}
void top_any(const Problem& p, const Top& out, int64_t item, int64_t head, char* workspace) {
  Registers registers(p);
  doubles(p) ? top<double>(p, out, item, head, workspace) : top<float>(p, out, item, head, workspace);
}
void map_any(const Problem& p, const Map& out, int64_t item, int64_t head, char* workspace) {
  Registers registers(p);
  doubles(p) ? map<double>(p, out, item, head, workspace) : map<float>(p, out, item, head, workspace);
}

}  // namespace

extern const Looks REGARD_NAMED(looks_) = {workspace_bytes, sums_any, top_any, map_any};

}  // namespace regard
