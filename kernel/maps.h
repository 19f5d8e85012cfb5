// All weights of a head in a few cells: sums, or the largest, of the pairs that may attend, and how many those are.
#pragma once
#include "looks.h"

namespace regard {
namespace {

// The cell of a position, where cell i begins at floor(i * size / cells); and where a cell ends.
inline int64_t cell_of(int64_t position, int64_t size, int64_t cells) { return ((position + 1) * cells - 1) / size; }
inline int64_t cell_end(int64_t cell, int64_t size, int64_t cells) { return (cell + 1) * size / cells; }

// Each lane's sum, or largest, over keys [from, to) of a tile of weights. A NaN stays one.
template <int vectors, class F>
[[gnu::noinline]] void gather(const F* weights, bool largest, F* out, int from, int to) {
  constexpr int N = Lanes<F>::N;
  Vector<F> found[vectors] = {};
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      Vector<F> w = load(weights + j * width<F> + v * N);
      if (largest) found[v] = (w > found[v]) | (w != w) ? w : found[v];
      else found[v] += w;
    }
  for (int v = 0; v < vectors; ++v) store(out + v * N, found[v]);
}

template <class F>
void map(const Problem& p, const Map& out, int64_t item, int64_t head, char* workspace) {
  static constexpr decltype(&gather<1, F>) shapes[] = {gather<1, F>, gather<2, F>, gather<3, F>};
  Space<F> s;
  Space<F>::carve(p, 0, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, item, head / (p.H / p.G), 0);
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  char *totals[width<F>], *counts[width<F>];  // of each row's cells
  auto add = [&](int i, int64_t column, double weight, int pairs) {
    double& total = number_at(out.total, totals[i], column);
    integer_at(out.count, counts[i], column) += pairs;
    if (!out.largest) total += weight;
    else if (!(weight <= total)) total = weight;
  };
  for (int64_t first = 0; first < p.T; first += width<F>) {
    Rows<F>& panel = s.panel[0];
    set_rows(p, panel, out.real, Array(), item, head, first, e, s.scratch());
    for (int i = 0; i < panel.rows; ++i) {
      int64_t cell = cell_of(panel.row[i].query, p.T, out.rows);
      totals[i] = const_cast<char*>(row_of(out.total, p, item, head, cell));
      counts[i] = const_cast<char*>(row_of(out.count, p, item, head, cell));
    }
    for (int64_t at = panel.begin / block * block; at < panel.end; at += block) {
      int64_t count = p.S - at < block ? p.S - at : block;
      bool all;
      int from, to;
      if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) continue;
      pieces<F>(panel.rows).rebuild(s.scores, e.factor, panel.lse, all ? nullptr : s.words, from, to);
      for (int64_t j = from, past; j < to && j < count; j = past) {
        int64_t column = cell_of(at + j, p.S, out.columns);
        past = cell_end(column, p.S, out.columns) - at;
        past = past < to ? past : to, past = past < count ? past : count;
        F found[width<F>];
        shapes[(panel.rows - 1) / Lanes<F>::N](s.scores, out.largest, found, int(j), int(past));
        for (int i = 0; i < panel.rows; ++i) {
          if (panel.counted[i] == 0) continue;
          int pairs = int(all ? past - j : __builtin_popcountll(s.words->row[i] & range_word(j, past)));
          if (pairs) add(i, column, found[i], pairs);
        }
      }
    }
  }
}

}  // namespace
}  // namespace regard
