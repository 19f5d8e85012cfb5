// What people ask of all weights, in one pass over them and without keeping any: sums by key and by distance, the spread of each
// row, and the keys that stand out.
//
// Some rows of a head at a time. Within a block sums are of F; beyond it float64, in one order.
#include "maps.h"
#include "ranks.h"

namespace regard {
namespace {

// Two vectors side by side, one lane further on.
template <class V, int... l>
inline V next_lanes(V a, V b, Sequence<l...>) { return __builtin_shufflevector(a, b, (l + 1)...); }

// Adds one panel's weights for a block to the block's sums, and to each row's Σ w log2 w and Σ w on keys of its own id and behind one.
// `keep`: scores become weights, as in `rebuild`.
template <int vectors, class F>
[[gnu::noinline]] void add_weights(const Space<F>& s, const Rows<F>& panel, F factor, const Words<F>* words,
                                   const typename Lanes<F>::Bits* key_ids, F* spread, F* same, F* behind, bool keep, int from, int to) {
  constexpr int N = Lanes<F>::N;
  using V = Vector<F>;
  const V zero = splat(F(0)), least = splat(F(-2000));  // w log w is 0 long before that
  V sum[vectors] = {}, own[vectors] = {}, after[vectors] = {}, along[vectors] = {}, counted[vectors];
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
      if (keep) store(s.scores + j * width<F> + v * N, w);
      sum[v] += product;
      w = counted[v] > zero ? w : zero;
      together += w;
      // Sums of the distances from j on; the first is complete then, and the others come one lane nearer.
      along[v] = next_lanes(along[v], v + 1 < vectors ? along[v + 1] : zero, typename UpTo<N>::Type()) + w;
      if (key_ids) {
        own[v] += ids[v] == Integers<F>{} + key_ids[j] ? w : zero;
        after[v] += ids[v] == Integers<F>{} + key_ids[j - 1] ? w : zero;
      }
    }
    s.by_distance[j] = along[0][0];
    F* at = s.by_key + j * N;
    store(at, load(at) + together);
  }
  for (int v = 0; v < vectors; ++v) store(s.by_distance + to - 1 + v * N, along[v]);
  for (int v = 0; v < vectors; ++v) store(spread + v * N, sum[v]), store(same + v * N, own[v]), store(behind + v * N, after[v]);
}

// How many pairs of a panel and block are allowed, by key and by distance.
template <class F>
void count_pairs(const Problem& p, const Rows<F>& panel, const Words<F>* words, int64_t* seen, int64_t* met, int64_t at) {
  seen += at, met += at - panel.last + p.T - 1;
  if (!words && panel.real == width<F>) {
    for (int j = 0; j < block; ++j) seen[j] += width<F>;
    for (int x = 0; x < block + width<F> - 1; ++x) {
      int low = x - block + 1 > 0 ? x - block + 1 : 0, high = x < width<F> - 1 ? x : width<F> - 1;
      met[x] += high - low + 1;
    }
    return;
  }
  for (int i = 0; i < panel.rows; ++i) {
    if (panel.counted[i] == 0) continue;
    for (uint64_t word = words ? words->row[i] : ~uint64_t(0); word; word &= word - 1) {
      int j = __builtin_ctzll(word);
      ++seen[j], ++met[j + i];
    }
  }
}

// Where a head's totals are.
struct Totals {
  double *received, *along;
  int64_t *seen, *met;
  double same = 0, behind = 0;
};

// Panel number n and the block at `at`: its weights go to the block's sums by key, the totals by distance, lists and cells.
template <class F>
void sum_block(const Problem& p, const Sums& out, const Space<F>& s, int n, const Exponent<F>& e, const char* key_rows, int64_t at,
               const typename Lanes<F>::Bits* key_ids, Cells<F>* cells, double* spread, Totals& totals) {
  static constexpr decltype(&add_weights<1, F>) shapes[] = {add_weights<1, F>, add_weights<2, F>, add_weights<3, F>};
  Rows<F>& panel = s.panel[n];
  bool all;
  int from, to;
  if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) return;
  const Words<F>* words = all ? nullptr : s.words;
  F parts[width<F>], own[width<F>], after[width<F>];
  shapes[(panel.rows - 1) / Lanes<F>::N](s, panel, e.factor, words, key_ids, parts, own, after, out.top || out.map, from, to);
  if (out.top) rank_block<false>(p, s, panel, s.best(n), *out.top, at, words, from, to);
  if (out.map) cells[n].add(p, *out.map, panel, s.scores, words, at, from, to);
  for (int i = 0; i < panel.rows; ++i) spread[i] += parts[i];
  for (int i = 0; key_ids && i < panel.rows; ++i) totals.same += own[i], totals.behind += after[i];
  const int64_t shift = at - panel.last + p.T - 1, past = p.T + p.S - 1 - shift, end = to + panel.rows - 1;
  for (int64_t x = from; x < (end < past ? end : past); ++x) totals.along[shift + x] += s.by_distance[x];
  count_pairs(p, panel, words, totals.seen, totals.met, at);
}

template <class F>
void sums(const Problem& p, const Sums& out, const HeadRows& rows, char* workspace) {
  constexpr int N = Lanes<F>::N;
  const int64_t item = rows.item, head = rows.head;
  Space<F> s;
  Space<F>::carve(p, out.top ? out.top->k : 0, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, item, head / (p.H / p.G), 0);
  Totals totals{head_of<double>(out.received, p, item, head), head_of<double>(out.along, p, item, head), head_of<int64_t>(out.seen, p, item, head),
                head_of<int64_t>(out.met, p, item, head)};
  typename Lanes<F>::Bits ids[1 + block];  // from the key before the block's first on
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  Cells<F> cells[s.panels];
  for (int64_t first = rows.begin; first < rows.end; first += s.panels * width<F>) {
    int used = 0;
    int64_t begin = p.S, end = 0;
    double spread[s.panels][width<F>] = {};
    for (int64_t r = first; r < rows.end && used < s.panels; r += width<F>, ++used) {
      Rows<F>& panel = s.panel[used];
      set_rows(p, panel, out.real, out.row_ids, rows, r, e, s.scratch());
      if (out.top) s.best(used).none();
      if (out.map) cells[used].set(p, *out.map, panel, item, head);
      if (panel.begin < begin) begin = panel.begin;
      if (panel.end > end) end = panel.end;
    }
    for (int64_t at = begin / block * block; at < end; at += block) {
      int64_t count = p.S - at < block ? p.S - at : block;
      memset(s.by_key, 0, block * N * sizeof(F));
      for (int64_t j = out.same ? -1 : count; j < count; ++j)
        ids[1 + j] = at + j < 0 ? -1 : typename Lanes<F>::Bits(read_int(at_item(out.key_ids, p, item) + (at + j) * out.key_ids.column));
      for (int n = 0; n < used; ++n)
        sum_block(p, out, s, n, e, key_rows, at, out.same ? ids + 1 : nullptr, cells, spread[n], totals);
      for (int64_t j = 0; j < count; ++j) {
        double sum = 0;
        for (int i = 0; i < N; ++i) sum += s.by_key[j * N + i];
        totals.received[at + j] += sum;
      }
    }
    for (int n = 0; n < used; ++n) {
      if (out.top) write_best(p, s.panel[n], s.best(n), *out.top, item, head);
      for (int i = 0; i < s.panel[n].rows; ++i)
        write(const_cast<char*>(row_of(out.entropy, p, item, head, s.panel[n].row[i].query)), float64, -spread[n][i] / log2_e);
    }
  }
  if (!out.same) return;
  double* same = head_of<double>(out.same, p, item, head);
  same[0] = totals.same, same[1] = totals.behind;
}

// Totals and shares of the other rows as F, once for a head: 1 / (count - 1) for rows that count, 1 / count for those that do not.
template <class F>
void get_totals(const Problem& p, const Sums& sums, int64_t item, int64_t head, const Space<F>& s) {
  auto get = [&](const Array& total, const Array& count, int64_t size, F* to, F* const share[2]) {
    const double* t = head_of<double>(total, p, item, head);
    const int64_t* c = head_of<int64_t>(count, p, item, head);
    for (int64_t n = 0; n < size; ++n) {
      int64_t met = c[n];
      to[n] = F(t[n]);
      for (int own = 0; own < 2; ++own) share[own][n] = met - 1 + own > 0 ? F(1.0 / double(met - 1 + own)) : F(NAN);
    }
  };
  get(sums.received, sums.seen, p.S, s.received, s.key_share);
  get(sums.along, sums.met, p.T + p.S - 1, s.along, s.step_share);
}

template <class F>
void top(const Problem& p, const Top& out, const HeadRows& rows, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, out.k, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, rows.item, rows.head / (p.H / p.G), 0);
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  if (out.beyond) get_totals(p, *out.beyond, rows.item, rows.head, s);
  for (int64_t first = rows.begin; first < rows.end; first += width<F>) {
    Rows<F>& panel = s.panel[0];
    set_rows(p, panel, out.beyond ? out.beyond->real : Array(), Array(), rows, first, e, s.scratch());
    const Best<F> best = s.best(0).none();
    for (int64_t at = panel.begin / block * block; at < panel.end; at += block) {
      bool all;
      int from, to;
      if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) continue;
      const Words<F>* words = all ? nullptr : s.words;
      pieces<F>(panel.rows).rebuild(s.scores, e.factor, panel.lse, words, from, to);
      (out.beyond ? rank_block<true, F> : rank_block<false, F>)(p, s, panel, best, out, at, words, from, to);
    }
    write_best(p, panel, best, out, rows.item, rows.head);
  }
}

bool doubles(const Problem& p) { return p.query.type == float64; }

size_t workspace_bytes(const Problem& p, int64_t k) {
  return doubles(p) ? Space<double>::carve(p, k, nullptr, nullptr) : Space<float>::carve(p, k, nullptr, nullptr);
}
void sums_any(const Problem& p, const Sums& out, const HeadRows& rows, char* workspace) {
  Registers registers(p);
  doubles(p) ? sums<double>(p, out, rows, workspace) : sums<float>(p, out, rows, workspace);
}
void top_any(const Problem& p, const Top& out, const HeadRows& rows, char* workspace) {
  Registers registers(p);
  doubles(p) ? top<double>(p, out, rows, workspace) : top<float>(p, out, rows, workspace);
}
void map_any(const Problem& p, const Map& out, const HeadRows& rows, char* workspace) {
  Registers registers(p);
  doubles(p) ? map<double>(p, out, rows, workspace) : map<float>(p, out, rows, workspace);
}

}  // namespace

extern const Looks REGARD_NAMED(looks_) = {workspace_bytes, sums_any, top_any, map_any};

}  // namespace regard
