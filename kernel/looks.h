// What every look goes through: panels of one head's rows, the last of them first, and their scores block by block.
//
// A panel holds its rows in reverse order: then key j of lane l lies at distance j + l, up to a constant, and sums by distance are
// plain unaligned additions.
#pragma once
#include "attention.h"

#include "logs.h"

namespace regard {
namespace {

template <class F>
struct Rows : Panel<F> {
  Logs<F> lse;
  F counted[width<F>];                          // 1 for rows that count, 0 for padding and lanes without a row
  typename Lanes<F>::Bits id[width<F>];
  int real;                                     // rows that count
  int64_t last;                                 // the number of the row in lane 0
};

// The best keys of each lane so far, sorted: (k, width) each. A rank of -inf: there is none. Weights are kept where ranks are not them.
template <class F>
struct Best {
  int64_t size;
  F *rank, *weight;
  typename Lanes<F>::Bits* key;

  const Best& none() const {
    for (int64_t n = 0; n < size; ++n) rank[n] = -INFINITY;
    return *this;
  }
};

template <class F>
struct Space {
  static constexpr int panels = 8;
  Rows<F>* panel;
  F *scores, *bias, *queries;
  mutable Keys<F> keys;
  F *by_key, *by_distance;                      // a block's sums: (block, lanes of one vector), (block + width)
  Words<F>* words;
  F *received, *key_share[2], *along, *step_share[2];  // for lift: totals, and 1 / (count - 1), 1 / count
  Scratch<F> scratch() const { return {scores, bias, &keys, words}; }
  Best<F> first;                                // of the first panel; the others' lie behind
  Best<F> best(int n) const { return {first.size, first.rank + n * first.size, first.weight + n * first.size, first.key + n * first.size}; }

  static size_t carve(const Problem& p, int64_t k, char* from, Space* space) {
    size_t used = 0;
    auto take = [&](size_t bytes) { char* here = from ? from + used : nullptr; used += rounded_up(bytes, 64); return here; };
    auto numbers = [&](int64_t n) { return reinterpret_cast<F*>(take(n * sizeof(F))); };
    int64_t distances = p.T + p.S + 2 * block + 2 * width<F>;
    Space s;
    s.panel = reinterpret_cast<Rows<F>*>(take(panels * sizeof(Rows<F>)));
    s.words = reinterpret_cast<Words<F>*>(take(sizeof(Words<F>)));
    s.scores = numbers(block * width<F>), s.bias = numbers(block * width<F>);
    s.keys.carve(p, p.D, take);
    s.queries = numbers(panels * width<F> * p.D);
    auto* query_pieces = reinterpret_cast<uint16_t*>(take(panels * query_room(p) * sizeof(uint16_t)));
    s.by_key = numbers(block * Lanes<F>::N), s.by_distance = numbers(block + width<F>);
    if (k) {
      s.first.size = k * width<F>;
      s.first.rank = numbers(panels * s.first.size), s.first.weight = numbers(panels * s.first.size);
      s.first.key = reinterpret_cast<typename Lanes<F>::Bits*>(take(panels * s.first.size * sizeof(F)));
      int64_t keys = rounded_up(p.S, block);
      s.received = numbers(keys), s.key_share[0] = numbers(keys), s.key_share[1] = numbers(keys);
      s.along = numbers(distances), s.step_share[0] = numbers(distances), s.step_share[1] = numbers(distances);
    }
    if (space) {
      *space = s;
      for (int n = 0; n < panels; ++n) s.panel[n].query = s.queries + n * width<F> * p.D, s.panel[n].query_pieces = query_pieces + n * query_room(p);
    }
    return used;
  }
};

// A panel of a head's rows from `first` on, the last of them in lane 0.
template <class F>
void set_rows(const Problem& p, Rows<F>& panel, const Array& real, const Array& ids, const HeadRows& rows, int64_t first,
              const Exponent<F>& e, const Scratch<F>& scratch) {
  const int64_t item = rows.item, head = rows.head, past = rows.end < first + width<F> ? rows.end : first + width<F>;
  panel.set(p, first, past, [&](int64_t n) { return make_row(p, item, head, past - 1 - (n - first)); }, scratch.scores);
  find_logs(p, panel, e, scratch, panel.lse);
  panel.last = past - 1, panel.real = 0;
  for (int i = 0; i < width<F>; ++i) {
    panel.counted[i] = 0, panel.id[i] = 0;
    if (i >= panel.rows) continue;
    int64_t query = panel.row[i].query;
    bool counts = !real || at_item(real, p, item)[query * real.row] != 0;
    panel.counted[i] = counts, panel.real += counts;
    if (ids) panel.id[i] = typename Lanes<F>::Bits(read_int(at_item(ids, p, item) + query * ids.row));
  }
}

// Bare scores of one panel and block; false where no row may attend a key of it. `all`: whether all may attend all.
template <class F>
bool block_scores(const Problem& p, const Space<F>& s, Rows<F>& panel, const Exponent<F>& e, const char* key_rows, int64_t at,
                  bool* all, int* from, int* to) {
  if (panel.outside(at)) return false;
  *all = !p.mask && !p.bias && !p.key_segments && panel.inside(at) && panel.rows == width<F>;
  *from = 0, *to = block;
  if (!*all) {
    find_words(p, panel.row, panel.rows, at, *s.words, s.bias);
    if (!s.words->any) return false;
    *from = __builtin_ctzll(s.words->any) / step * step;
    *to = int(rounded_up(64 - __builtin_clzll(s.words->any), step));
  }
  s.keys.get(p, key_rows, at);
  s.keys.scores(p, panel, s.scores, *from, *to);
  if (e.bend) pieces<F>(panel.rows).bend(s.scores, e.scale, F(p.softcap), p.bias ? s.bias : nullptr, *from, *to, nullptr);
  return true;
}

inline int64_t& integer_at(const Array& a, char* from, int64_t n) { return *reinterpret_cast<int64_t*>(from + n * a.column); }
inline double& number_at(const Array& a, char* from, int64_t n) { return *reinterpret_cast<double*>(from + n * a.column); }

}  // namespace
}  // namespace regard
