// Attention by tiled online softmax, in linear memory: for each block of 64 keys, for each panel of query rows:
// scores -> who may attend -> exponentials -> values, while peak, sum and output of each row are kept up to date.
//
// Compiled once for each instruction set. Rows never meet: a row's bits depend on the row, its keys and the problem's sizes,
// never on its neighbours, its place in the batch or the number of threads. Masked places add exact zeros.
#include "attention.h"

#include "plain.h"
#include "few.h"
#include "logs.h"

namespace regard {
namespace {

// Whether a key head's rows are so few that they go along the width (few.h). All of them then are one panel.
template <class F>
bool is_few(const Problem& p) { return p.H / p.G * p.T <= few<F>; }

// Panels that share one pass over the keys: as many as keep queries and outputs within the second-level cache.
template <class F>
int64_t panels_per_unit(const Problem& p) {
  int64_t bytes = (p.D + p.V + 8) * width<F> * int64_t(sizeof(F)), panels = 160 * 1024 / bytes;
  return panels < 1 ? 1 : panels > 8 ? 8 : panels;
}

// A unit's memory, carved from its workspace.
template <class F>
struct Space {
  struct Rows : Panel<F> {
    bool whole;               // saw a block that all its rows may attend
    uint64_t seen[width<F>];  // not 0: has attended a key
    bool again[width<F>];     // attends a value that is not finite
    F *output, *peak, *sum;
    F *query_rows, *output_rows;  // row-major, where rows are few
  };
  int64_t panels, columns;
  Rows* panel;
  F *scores, *bias, *alpha, *key_block, *value_block;
  Words<F>* words;

  static size_t carve(const Problem& p, char* from, Space* space) {
    size_t used = 0;
    auto take = [&](size_t bytes) { char* here = from ? from + used : nullptr; used += rounded_up(bytes, 64); return here; };
    Space s;
    s.panels = panels_per_unit<F>(p), s.columns = rounded_up(p.V, step > Lanes<F>::N ? step : Lanes<F>::N);
    s.panel = reinterpret_cast<Rows*>(take(s.panels * sizeof(Rows)));
    auto numbers = [&](int64_t n) { return reinterpret_cast<F*>(take(n * sizeof(F))); };
    s.scores = numbers(block * width<F>);
    s.bias = numbers(p.bias ? block * width<F> : 0);
    s.alpha = numbers(width<F>);
    s.key_block = numbers(block * p.D);
    s.value_block = numbers(block * s.columns);
    s.words = reinterpret_cast<Words<F>*>(take(sizeof(Words<F>)));
    F* rows = numbers(is_few<F>(p) ? few<F> * (p.D + s.columns) : 0);
    char* first = take(s.panels * (p.D + s.columns + 2) * width<F> * sizeof(F));
    if (!space) return used;
    *space = s;
    F* next = reinterpret_cast<F*>(first);
    for (int64_t i = 0; i < s.panels; ++i) {
      Rows& q = s.panel[i];
      q.query = next, next += p.D * width<F>;
      q.output = next, next += s.columns * width<F>;
      q.peak = next, next += width<F>;
      q.sum = next, next += width<F>;
      q.query_rows = rows, q.output_rows = rows + few<F> * p.D;  // there is one panel then
    }
    return used;
  }
};

// A panel's end: output = sum / total, lse, the sink's share; empty rows; rows to compute again. `scratch` holds one row.
template <class F>
int finish(const Problem& p, typename Space<F>::Rows& panel, const Exponent<F>& e, int64_t columns, F* scratch) {
  constexpr int N = Lanes<F>::N;
  int flags = 0;
  F strange[width<F>], share[width<F>];
  double lse[width<F>];
  for (int v = 0; v < 3; ++v) {  // 0 where all of the row's output is finite
    Vector<F> sum = splat(F(0));
    for (int64_t c = 0; c < columns; ++c) sum += load(panel.output + c * width<F> + v * N) * splat(F(0));
    store(strange + v * N, sum);
  }
  for (int i = 0; i < width<F>; ++i) {
    share[i] = 0, lse[i] = -INFINITY;
    if (i >= panel.rows) continue;
    bool any = panel.whole || panel.seen[i];
    double total = panel.sum[i], peak = panel.peak[i] * e.to_natural;
    panel.again[i] = any && (panel.again[i] || strange[i] != 0 || !(total > 0 && total < INFINITY));
    if (any) share[i] = F(1 / total), lse[i] = peak + log(total);
    if (!p.sinks) continue;
    double sink = read(p.sinks.data + panel.row[i].head * p.sinks.head, float64);
    if (any) {
      double top = sink > peak ? sink : peak, all = total * exp(peak - top) + exp(sink - top);
      share[i] = F(exp(peak - top) / all), lse[i] = top + log(all);
    } else {
      lse[i] = sink;
    }
  }
  for (int64_t c = 0; c < columns; ++c)
    for (int v = 0; v < 3; ++v) {
      F* at = panel.output + c * width<F> + v * N;
      store(at, load(at) * load(share + v * N));
    }
  for (int i = 0; i < panel.rows; ++i) {
    const Row& row = panel.row[i];
    if (panel.again[i]) {
      flags |= plain_row(p, row);
      continue;
    }
    char* out = const_cast<char*>(row_of(p.output, p, row.item, row.head, row.query));
    for (int64_t c = 0; c < p.V; c += block) {
      int64_t n = p.V - c < block ? p.V - c : block;
      for (int64_t d = 0; d < n; ++d) scratch[d] = panel.output[(c + d) * width<F> + i];
      write_numbers(scratch, n, out + c * p.output.column, p.output.type, p.output.column);
    }
    if (p.lse) write(const_cast<char*>(row_of(p.lse, p, row.item, row.head, row.query)), p.lse.type, lse[i]);
  }
  return flags;
}

template <class F>
int forward(const Problem& p, const Unit& unit, char* workspace) {
  Space<F> space;
  Space<F>::carve(p, workspace, &space);
  const Exponent<F> e = exponent<F>(p);
  const int64_t group = p.H / p.G;
  const bool ranges_only = !p.mask && !p.bias && !p.key_segments, by_row = is_few<F>(p);
  int flags = 0;
  int64_t begin = p.S, end = 0, used = 0;
  if (p.bias) memset(space.bias, 0, block * width<F> * sizeof(F));
  for (int64_t r = unit.begin; r < unit.end; r += width<F>, ++used) {
    auto& panel = space.panel[used];
    panel.set(p, r, unit.end, [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / p.T, n % p.T); },
              space.scores);
    panel.whole = false;
    memset(panel.seen, 0, sizeof panel.seen);
    memset(panel.again, 0, sizeof panel.again);
    memset(panel.output, 0, (space.columns + 2) * width<F> * sizeof(F));
    if (by_row) {
      for (int i = 0; i < panel.rows; ++i)
        for (int64_t d = 0; d < p.D; ++d) panel.query_rows[i * p.D + d] = panel.query[d * width<F> + i];
      memset(panel.output_rows, 0, panel.rows * space.columns * sizeof(F));
      memset(space.scores, 0, block * width<F> * sizeof(F));
    }
    for (int i = 0; i < width<F>; ++i) panel.peak[i] = -INFINITY;
    if (panel.begin < begin) begin = panel.begin;
    if (panel.end > end) end = panel.end;
  }
  const char* key_rows = row_of(p.key, p, unit.item, unit.key_head, 0);
  const char* value_rows = row_of(p.value, p, unit.item, unit.key_head, 0);

  for (int64_t at = begin / block * block; at < end; at += block) {
    int64_t count = p.S - at < block ? p.S - at : block, key_row = 0, value_row = 0;
    const F *keys = nullptr, *values = nullptr;
    uint64_t strange = 0;
    const bool more = at + 2 * block <= end && p.query.type == (sizeof(F) == 4 ? float32 : float64);
    for (int64_t n = 0; n < used; ++n) {
      auto& panel = space.panel[n];
      if (panel.outside(at)) continue;
      const Pieces<F>& piece = pieces<F>(panel.rows);
      bool all = ranges_only && panel.inside(at);
      int from = 0, to = block;
      if (!all) {
        flags |= find_words(p, panel.row, panel.rows, at, *space.words, space.bias);
        if (!space.words->any) continue;
        all = space.words->all;
        from = __builtin_ctzll(space.words->any) / step * step;
        to = int(rounded_up(64 - __builtin_clzll(space.words->any), step));
      }
      if (!keys) {
        keys = get_block(p.key, key_rows + at * p.key.row, count, p.D, p.D, space.key_block, &key_row, more);
        values = get_block(p.value, value_rows + at * p.value.row, count, p.V, space.columns, space.value_block, &value_row, more);
        strange = tame_values(&values, &value_row, rounded_up(count, step), space.columns, space.value_block);
      }
      if (by_row) score_few(panel.rows, keys, key_row, panel.query_rows, p.D, space.scores, from, to);
      else piece.scores(keys, key_row, panel.query, p.D, space.scores, from, to);
      if (e.bend) piece.bend(space.scores, e.scale, F(p.softcap), p.bias ? space.bias : nullptr, from, to, nullptr);
      if (all) {
        panel.whole = true;
        for (int i = 0; strange && i < panel.rows; ++i) panel.again[i] = true;
      } else {
        piece.mask(space.scores, *space.words, from, to);
        for (int i = 0; i < panel.rows; ++i) {
          panel.seen[i] |= space.words->row[i];
          panel.again[i] |= (space.words->row[i] & strange) != 0;
        }
      }
      piece.exponentials(space.scores, e.factor, panel.peak, panel.sum, space.alpha, from, to);
      if (p.dropout) drop(p, panel.row, panel.rows, at, space.scores, from, to);
      if (by_row) value_few(panel.rows, values, value_row, space.scores, space.alpha, panel.output_rows, space.columns, from, to);
      else piece.values(values, value_row, space.scores, space.alpha, panel.output, space.columns, from, to);
    }
  }
  for (int i = 0; by_row && i < space.panel[0].rows; ++i)
    for (int64_t c = 0; c < space.columns; ++c)
      space.panel[0].output[c * width<F> + i] = space.panel[0].output_rows[i * space.columns + c];
  for (int64_t n = 0; n < used; ++n) flags |= finish<F>(p, space.panel[n], e, space.columns, space.scores);
  return flags;
}

// Writes one lane of a tile's block: scores, weights or who may attend, for keys [from, to) of the block.
template <class F>
void write_lane(const Problem& p, const Tile& t, const Row& row, uint64_t word, const F* lane, int64_t at, int from, int to) {
  char* out = const_cast<char*>(row_of(t.out, p, row.item, row.head, row.query - t.row_begin)) + (at - t.key_begin) * t.out.column;
  for (int j = from; j < to; ++j) {
    bool attended = (word >> j) & 1;
    char* cell = out + j * t.out.column;
    if (t.what == allowed) *cell = attended;
    else write(cell, t.out.type, attended ? lane[j * width<F>] : t.what == scores ? -INFINITY : 0);
  }
}

template <class F>
int tile(const Problem& p, const Tile& t, const Unit& unit, char* workspace) {
  Space<F> space;
  Space<F>::carve(p, workspace, &space);
  const Exponent<F> e = exponent<F>(p);
  const int64_t group = p.H / p.G, last = t.key_begin + t.keys;
  const char* key_rows = row_of(p.key, p, unit.item, unit.key_head, 0);
  Logs<F> lse;
  if (p.bias) memset(space.bias, 0, block * width<F> * sizeof(F));
  for (int64_t r = unit.begin; r < unit.end; r += width<F>) {
    auto& panel = space.panel[0];
    panel.set(p, r, unit.end,
              [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / t.rows, t.row_begin + n % t.rows); },
              space.scores);
    const Pieces<F>& piece = pieces<F>(panel.rows);
    if (t.what == weights) find_logs(p, panel, e, {space.scores, space.bias, space.key_block, space.words}, lse);
    for (int64_t at = t.key_begin / block * block; at < last; at += block) {
      int from = int(t.key_begin > at ? t.key_begin - at : 0), to = int(last - at < block ? last - at : block);
      find_words(p, panel.row, panel.rows, at, *space.words, space.bias);
      if (t.what != allowed && space.words->any) {
        int64_t key_row, count = p.S - at < block ? p.S - at : block;
        int low = from / step * step, high = int(rounded_up(to, step));
        const F* keys = get_block(p.key, key_rows + at * p.key.row, count, p.D, p.D, space.key_block, &key_row);
        piece.scores(keys, key_row, panel.query, p.D, space.scores, low, high);
        if (e.bend) piece.bend(space.scores, e.scale, F(p.softcap), p.bias ? space.bias : nullptr, low, high, nullptr);
        if (t.what == weights) piece.rebuild(space.scores, e.factor, lse, nullptr, low, high);
        for (int64_t n = low * width<F>; t.what == scores && n < high * width<F>; ++n) space.scores[n] *= F(e.to_natural);
      }
      for (int i = 0; i < panel.rows; ++i) write_lane(p, t, panel.row[i], space.words->row[i], space.scores + i, at, from, to);
    }
  }
  return 0;
}

bool doubles(const Problem& p) { return p.query.type == float64; }

int64_t rows_per_unit(const Problem& p) {
  return doubles(p) ? panels_per_unit<double>(p) * width<double> : panels_per_unit<float>(p) * width<float>;
}
int64_t panel_rows(const Problem& p) { return doubles(p) ? width<double> : width<float>; }
size_t workspace_bytes(const Problem& p) {
  return doubles(p) ? Space<double>::carve(p, nullptr, nullptr) : Space<float>::carve(p, nullptr, nullptr);
}
int forward_any(const Problem& p, const Unit& unit, char* workspace) {
  return doubles(p) ? forward<double>(p, unit, workspace) : forward<float>(p, unit, workspace);
}
int tile_any(const Problem& p, const Tile& t, const Unit& unit, char* workspace) {
  return doubles(p) ? tile<double>(p, t, unit, workspace) : tile<float>(p, t, unit, workspace);
}

}  // namespace

extern const Backward REGARD_NAMED(backward_);
extern const Looks REGARD_NAMED(looks_);
extern const Kernel REGARD_NAMED(kernel_) = {REGARD_NAME, rows_per_unit, panel_rows, workspace_bytes, forward_any, tile_any,
                                             &REGARD_NAMED(backward_), &REGARD_NAMED(looks_)};

}  // namespace regard
