// All weights of a head in a few cells: sums and the largest of the pairs that may attend, and how many those are.
#pragma once
#include "looks.h"

namespace regard {
namespace {

// The cell of a position, where cell i begins at floor(i * size / cells); and where a cell ends.
inline int64_t cell_of(int64_t position, int64_t size, int64_t cells) { return ((position + 1) * cells - 1) / size; }
inline int64_t cell_end(int64_t cell, int64_t size, int64_t cells) { return (cell + 1) * size / cells; }

inline double larger_or_nan(double a, double b) { return a > b || a != a ? a : b; }

// Each lane's sum and largest over keys [from, to) of a tile of weights. A NaN stays one.
template <int vectors, class F>
[[gnu::noinline]] void gather(const F* weights, F* sums, F* largest, int from, int to) {
  constexpr int N = Lanes<F>::N;
  Vector<F> sum[vectors] = {}, most[vectors] = {};
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      Vector<F> w = load(weights + j * width<F> + v * N);
      sum[v] += w;
      most[v] = (w > most[v]) | (w != w) ? w : most[v];
    }
  for (int v = 0; v < vectors; ++v) store(sums + v * N, sum[v]), store(largest + v * N, most[v]);
}

// Where the cells of a panel's rows begin.
template <class F>
struct Cells {
  char *total[width<F>], *largest[width<F>], *count[width<F>];

  void set(const Problem& p, const Map& map, const Rows<F>& panel, int64_t item, int64_t head) {
    for (int i = 0; i < panel.rows; ++i) {
      int64_t cell = cell_of(panel.row[i].query, p.T, map.rows);
      auto here = [&](const Array& a) { return const_cast<char*>(row_of(a, p, item, head, cell)); };
      total[i] = here(map.total), largest[i] = here(map.largest), count[i] = here(map.count);
    }
  }

  // Adds the weights of keys [from, to) of the block at `at`; `words` null: all may attend all.
  void add(const Problem& p, const Map& map, const Rows<F>& panel, const F* weights, const Words<F>* words, int64_t at, int from, int to) {
    static constexpr decltype(&gather<1, F>) shapes[] = {gather<1, F>, gather<2, F>, gather<3, F>};
    const int64_t end = to < p.S - at ? to : p.S - at;
    for (int64_t j = from, past; j < end; j = past) {
      int64_t column = cell_of(at + j, p.S, map.columns);
      past = cell_end(column, p.S, map.columns) - at;
      past = past < end ? past : end;
      F sums[width<F>], most[width<F>];
      shapes[(panel.rows - 1) / Lanes<F>::N](weights, sums, most, int(j), int(past));
      for (int i = 0, first = 0; i < panel.rows; first = i) {  // rows of one cell together
        double sum = 0, peak = -INFINITY;
        int64_t pairs = 0;
        for (; i < panel.rows && total[i] == total[first]; ++i) {
          const int64_t own = words ? __builtin_popcountll(words->row[i] & range_word(j, past)) : past - j;
          if (panel.counted[i] == 0 || !own) continue;
          sum += sums[i], pairs += own;
          peak = larger_or_nan(most[i], peak);
        }
        if (!pairs) continue;
        number_at(map.total, total[first], column) += sum;
        double& so_far = number_at(map.largest, largest[first], column);
        so_far = larger_or_nan(peak, so_far);
        integer_at(map.count, count[first], column) += pairs;
      }
    }
  }
};

template <class F>
void map(const Problem& p, const Map& out, const HeadRows& rows, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, 0, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  const char* key_rows = row_of(p.key, p, rows.item, rows.head / (p.H / p.G), 0);
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  Cells<F> cells;
  for (int64_t first = rows.begin; first < rows.end; first += width<F>) {
    Rows<F>& panel = s.panel[0];
    set_rows(p, panel, out.real, Array(), rows, first, e, s.scratch());
    cells.set(p, out, panel, rows.item, rows.head);
    for (int64_t at = panel.begin / block * block; at < panel.end; at += block) {
      bool all;
      int from, to;
      if (!block_scores(p, s, panel, e, key_rows, at, &all, &from, &to)) continue;
      const Words<F>* words = all ? nullptr : s.words;
      pieces<F>(panel.rows).rebuild(s.scores, e.factor, panel.lse, words, from, to);
      cells.add(p, out, panel, s.scores, words, at, from, to);
    }
  }
}

}  // namespace
}  // namespace regard
