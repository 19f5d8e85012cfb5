// Attention by tiled online softmax, in linear memory: for each block of 64 keys, for each panel of query rows:
// scores -> who may attend -> exponentials -> values, while peak, sum and output of each row are kept up to date.
//
// Compiled once for each instruction set. Rows never meet: a row's bits depend on the row, its keys and the problem's sizes,
// never on its neighbours, its place in the batch or the number of threads. Masked places add exact zeros.
#include "attention.h"

#include "logs.h"
#include "matrix_values.h"
#include "plain.h"

namespace regard {
namespace {

// Outputs times each row's share, row by row; rows that the plain path has written are left alone.
template <class F>
void write_rows(const Problem& p, const typename Space<F>::Rows& panel, const F* share, int64_t columns, F* scratch) {
  constexpr int N = Lanes<F>::N;
  const bool direct = in_place<F>(p.output, at_item(p.output, p, panel.row[0].item));
  for (int first = 0; first < panel.rows; first += N) {
    char* out[N];
    for (int i = 0; i < N; ++i) {
      const Row& row = panel.row[first + i < panel.rows ? first + i : first];
      bool ours = first + i < panel.rows && !panel.again[first + i];
      out[i] = ours ? const_cast<char*>(row_of(p.output, p, row.item, row.head, row.query)) : nullptr;
    }
    for (int64_t c = 0; c < columns; c += N) {  // square by square
      int64_t n = p.V - c < N ? p.V - c : N;
      Vector<F> x[N];
      for (int i = 0; i < N; ++i) x[i] = load(panel.output + (c + i) * width<F> + first) * load(share + first);
      transpose<F>(x);
      for (int i = 0; i < N && n > 0; ++i) {
        if (!out[i]) continue;
        if (direct && n == N) {
          store(reinterpret_cast<F*>(out[i]) + c, x[i]);
        } else {
          store(scratch, x[i]);
          write_numbers(scratch, n, out[i] + c * p.output.column, p.output.type, p.output.column);
        }
      }
    }
  }
}

// Whether all of a row's output is so small that values which matrix tiles take for 0 may count.
template <class F>
bool is_faint(const F* output, int64_t columns, double total) {
  for (int64_t c = 0; c < columns; ++c)
    if (fabs(output[c * width<F>]) > faint_output * total) return false;
  return true;
}

// A panel's end: output = sum / total, lse, the sink's share; empty rows; rows to compute again. `scratch` holds one row.
template <class F>
int finish(const Problem& p, typename Space<F>::Rows& panel, const Exponent<F>& e, int64_t columns, F* scratch) {
  constexpr int N = Lanes<F>::N;
  const int vectors = (panel.rows - 1) / N + 1;
  int flags = 0;
  F strange[width<F>], share[width<F>];
  double lse[width<F>];
  Vector<F> zeros[3] = {};  // 0 where all of the row's output is finite
  for (int64_t c = 0; c < columns; ++c)
    for (int v = 0; v < vectors; ++v) zeros[v] += load(panel.output + c * width<F> + v * N) * splat(F(0));
  for (int v = 0; v < 3; ++v) store(strange + v * N, zeros[v]);
  for (int i = 0; i < width<F>; ++i) {
    share[i] = 0, lse[i] = -INFINITY;
    if (i >= panel.rows) continue;
    bool any = panel.whole || panel.seen[i];
    double total = panel.sum[i], peak = panel.peak[i] * e.to_natural;
    panel.again[i] = any && (panel.again[i] || strange[i] != 0 || !(total > 0 && total < INFINITY));
    if (panel.faint[i]) panel.again[i] |= is_faint(panel.output + i, columns, total);
    if (any) share[i] = F(1 / total);
    if (any && p.lse) lse[i] = peak + log(total);
    if (!p.sinks) continue;
    double sink = read(p.sinks.data + panel.row[i].head * p.sinks.head, float64);
    if (any) {
      double top = sink > peak ? sink : peak, all = total * exp(peak - top) + exp(sink - top);
      share[i] = F(exp(peak - top) / all), lse[i] = top + log(all);
    } else {
      lse[i] = sink;
    }
  }
  for (int i = 0; i < panel.rows; ++i) {
    const Row& row = panel.row[i];
    if (p.lse && !panel.again[i]) write(const_cast<char*>(row_of(p.lse, p, row.item, row.head, row.query)), p.lse.type, lse[i]);
    if (panel.again[i]) flags |= plain_row(p, row);
  }
  write_rows<F>(p, panel, share, columns, scratch);
  return flags;
}

// Sets up a unit's panels, with nothing attended yet; returns how many.
template <class F>
int64_t begin(const Problem& p, const Space<F>& space, const Unit& unit) {
  const int64_t group = p.H / p.G;
  int64_t used = 0;
  if (p.bias) memset(space.bias, 0, block * width<F> * sizeof(F));
  for (int64_t r = unit.begin; r < unit.end; r += space.panel[used++].rows) {
    auto& panel = space.panel[used];
    panel.set(p, r, panel_end<F>(r, unit.end), [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / p.T, n % p.T); },
              space.scores);
    panel.whole = false;
    memset(panel.seen, 0, sizeof panel.seen);
    memset(panel.again, 0, sizeof panel.again);
    memset(panel.faint, 0, sizeof panel.faint);
    memset(panel.output, 0, (space.columns + 2) * width<F> * sizeof(F));
    for (int i = 0; i < width<F>; ++i) panel.peak[i] = -INFINITY;
    if (!is_few<F>(p)) continue;
    for (int i = 0; i < panel.rows; ++i)
      for (int64_t d = 0; d < p.D; ++d) panel.query_rows[i * p.D + d] = panel.query[d * width<F> + i];
    if constexpr (has_pairs && has_pieces<F>)
      if (space.keys.cut.keys) panel.strange |= halve_rows(panel.rows, panel.query_rows, p.D, panel.query_halves);
    memset(panel.output_rows, 0, panel.rows * space.columns * sizeof(F));
    memset(space.scores, 0, block * width<F> * sizeof(F));
  }
  return used;
}

// One block of keys and values, and what there is to know of it.
template <class F>
struct Block {
  const void *keys, *values = nullptr;  // rows of F, or, where query rows are few, of halves; other keys: Space::keys
  Type key_type, value_type;
  int64_t at, key_row, value_row;
  bool more;             // there is a next one
  bool tame = false;     // values that are not finite are 0
  Found found;           // and these keys had one

  // `masked`: a row may not attend one of the keys. Values must be tame then: 0 times what is not finite is not 0. Where all may,
  // the row's output itself is not finite, and the row is computed again for that.
  void get(const Problem& p, const Space<F>& s, const char* key_rows, const char* value_rows, bool masked) {
    int64_t count = p.S - at < block ? p.S - at : block;
    if (!values) {
      if (is_few<F>(p)) keys = rows(p, p.key, key_rows, count, p.D, p.D, s.keys.copy, false, &key_row, &key_type);
      else s.keys.get(p, key_rows, at, more || are_halves(p));
      values = rows(p, p.value, value_rows, count, p.V, s.columns, s.value_block, masked, &value_row, &value_type);
    }
    if (tame) return;
    if constexpr (has_matrix<F>)
      if (s.keys.cut.values) {
        found = cut_values_of(s, static_cast<const F*>(values), value_row, count), tame = true;
        return;
      }
    if (!masked) return;
    const F* numbers = static_cast<const F*>(values);
    found.strange = tame_values(&numbers, &value_row, rounded_up(count, step), s.columns, s.value_block);
    values = numbers, tame = true;
  }

 private:
  static bool are_halves(const Problem& p) { return sizeof(F) == 4 && (p.key.type == bfloat16 || p.key.type == float16); }

  const void* rows(const Problem& p, const Array& a, const char* first, int64_t count, int64_t columns, int64_t padded, F* copy,
                   bool masked, int64_t* row_size, Type* type) const {
    const char* from = first + at * a.row;
    const bool halves = are_halves(p);
    *type = a.type;
    *row_size = a.row / 2;
    bool aligned = (uintptr_t(from) | uintptr_t(a.row)) % 2 == 0;
    if (is_few<F>(p) && halves && !masked && a.column == 2 && aligned && count % step == 0 && columns == padded) return from;
    *type = sizeof(F) == 4 ? float32 : float64;
    return get_block(a, from, count, columns, padded, copy, row_size, (more && !is_few<F>(p)) || halves);
  }
};

// Scores of few rows. What pairs do not take is computed without them, row by row.
template <class F>
void few_scores(const Problem& p, const Space<F>& s, const typename Space<F>::Rows& panel, const Block<F>& b, int from, int to) {
  auto multiply = [&](auto keys, auto queries, F* into) {
    score_few<F>(panel.rows, keys, b.key_row, queries, p.D, into, from, to, b.more && b.keys != s.keys.copy);
  };
  with_rows<F>(b.keys, b.key_type, [&](auto keys) {
    if constexpr (has_pairs && is_bfloat16<decltype(keys)>)
      if (s.keys.cut.keys) {
        multiply(keys, panel.query_halves, s.scores);
        if (!panel.strange) return;
        multiply(keys, panel.query_rows, s.keys.others);
        return s.keys.take_others(panel, 0, s.scores, from, to);
      }
    multiply(keys, panel.query_rows, s.scores);
  });
}

// The step of the online softmax: one panel, one block, keys [from, to) of it; `words` null: all rows may attend all of them.
template <class F>
void panel_block(const Problem& p, const Space<F>& s, typename Space<F>::Rows& panel, const Exponent<F>& e, const Block<F>& b,
                 const Words<F>* words, int from, int to) {
  const Pieces<F>& piece = pieces<F>(panel.rows);
  const bool by_row = is_few<F>(p);
  if (by_row) few_scores(p, s, panel, b, from, to);
  else s.keys.scores(p, panel, s.scores, from, to);
  if (e.bend) piece.bend(s.scores, e.scale, F(p.softcap), p.bias ? s.bias : nullptr, from, to, nullptr);
  if (words) piece.mask(s.scores, *words, from, to);
  else panel.whole = true;
  auto seen = [&](int row) { return words ? words->row[row] : ~uint64_t(0); };
  for (int i = 0; words && i < panel.rows; ++i) panel.seen[i] |= words->row[i];
  for (int i = 0; (b.found.strange | b.found.faint) && i < panel.rows; ++i)
    panel.again[i] |= (seen(i) & b.found.strange) != 0, panel.faint[i] |= (seen(i) & b.found.faint) != 0;
  piece.exponentials(s.scores, e.factor, panel.peak, panel.sum, s.alpha, from, to);
  if (p.dropout) drop(p, panel.row, panel.rows, b.at, s.scores, from, to);
  if (by_row)
    return with_rows<F>(b.values, b.value_type, [&](auto values) {
      value_few<F>(panel.rows, values, b.value_row, s.scores, s.alpha, panel.output_rows, s.columns, from, to, b.more && b.values != s.value_block);
    });
  if constexpr (has_matrix<F>)
    if (s.keys.cut.values) return matrix_values(s, panel, from, to);
  piece.values(static_cast<const F*>(b.values), b.value_row, s.scores, s.alpha, panel.output, s.columns, from, to);
}

// All panels of a unit over keys [first, last), block by block. Returns flags.
template <class F>
int over_blocks(const Problem& p, const Space<F>& s, const Unit& unit, int64_t used, const Exponent<F>& e, int64_t first, int64_t last) {
  const bool ranges_only = !p.mask && !p.bias && !p.key_segments;
  const char *key_rows = row_of(p.key, p, unit.item, unit.key_head, 0), *value_rows = row_of(p.value, p, unit.item, unit.key_head, 0);
  int64_t begin = last, end = first;
  int flags = 0;
  for (int64_t n = 0; n < used; ++n) {
    if (s.panel[n].begin < begin) begin = s.panel[n].begin;
    if (s.panel[n].end > end) end = s.panel[n].end;
  }
  begin = begin < first ? first : begin, end = end > last ? last : end;
  for (int64_t at = begin / block * block; at < end; at += block) {
    Block<F> b;
    b.at = at, b.more = at + 2 * block <= end;
    for (int64_t n = 0; n < used; ++n) {
      auto& panel = s.panel[n];
      if (panel.outside(at)) continue;
      bool all = ranges_only && panel.inside(at);
      int from = 0, to = block;
      if (!all) {
        flags |= find_words(p, panel.row, panel.rows, at, *s.words, s.bias);
        if (!s.words->any) continue;
        all = s.words->all;
        from = __builtin_ctzll(s.words->any) / step * step;
        to = int(rounded_up(64 - __builtin_clzll(s.words->any), step));
      }
      b.get(p, s, key_rows, value_rows, !all);
      panel_block(p, s, panel, e, b, all ? nullptr : s.words, from, to);
    }
  }
  return flags;
}

template <class F>
int forward(const Problem& p, const Unit& unit, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  int64_t used = begin(p, s, unit);
  int flags = over_blocks(p, s, unit, used, e, 0, p.S);
  for (int i = 0; is_few<F>(p) && i < s.panel[0].rows; ++i)
    for (int64_t c = 0; c < s.columns; ++c) s.panel[0].output[c * width<F> + i] = s.panel[0].output_rows[i * s.columns + c];
  for (int64_t n = 0; n < used; ++n) flags |= finish<F>(p, s.panel[n], e, s.columns, s.scores);
  return flags;
}

// What a part of the keys leaves behind, a row: peak, sum, whether it saw any and must be computed again, and its output so far.
template <class F>
int64_t row_state(const Problem& p) { return 4 + rounded_up(p.V, step > Lanes<F>::N ? step : Lanes<F>::N); }

template <class F>
int part(const Problem& p, const Unit& unit, int64_t first, int64_t last, char* state, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, workspace, &s);
  int64_t used = begin(p, s, unit);
  int flags = over_blocks(p, s, unit, used, exponent<F>(p), first, last);
  F* to = reinterpret_cast<F*>(state);
  auto& panel = s.panel[0];
  for (int i = 0; i < panel.rows; ++i, to += row_state<F>(p)) {
    to[0] = panel.peak[i], to[1] = panel.sum[i], to[2] = panel.whole || panel.seen[i], to[3] = panel.again[i];
    memcpy(to + 4, panel.output_rows + i * s.columns, s.columns * sizeof(F));
  }
  return flags;
}

template <class F>
int join(const Problem& p, const Unit& unit, char* states, int64_t count, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, workspace, &s);
  const Exponent<F> e = exponent<F>(p);
  begin(p, s, unit);
  auto& panel = s.panel[0];
  const int64_t row = row_state<F>(p);
  for (int i = 0; i < panel.rows; ++i) {
    const F* parts = reinterpret_cast<const F*>(states) + i * row;
    for (int64_t n = 0; n < count; ++n) panel.peak[i] = parts[n * few<F> * row] > panel.peak[i] ? parts[n * few<F> * row] : panel.peak[i];
    for (int64_t n = 0; n < count; ++n) {
      const F* from = parts + n * few<F> * row;
      if (from[2] == 0) continue;
      F alpha = from[0] == panel.peak[i] ? F(1) : F(::exp2(double(from[0] - panel.peak[i]) * e.factor));
      panel.sum[i] += from[1] * alpha;
      panel.seen[i] = 1, panel.again[i] |= from[3] != 0;
      for (int64_t c = 0; c < s.columns; ++c) panel.output[c * width<F> + i] += from[4 + c] * alpha;
    }
  }
  return finish<F>(p, panel, e, s.columns, s.scores);
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
  auto& panel = space.panel[0];
  for (int64_t r = unit.begin; r < unit.end; r += panel.rows) {
    panel.set(p, r, panel_end<F>(r, unit.end),
              [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / t.rows, t.row_begin + n % t.rows); },
              space.scores);
    const Pieces<F>& piece = pieces<F>(panel.rows);
    if (t.what == weights) find_logs(p, panel, e, {space.scores, space.bias, &space.keys, space.words}, lse);
    for (int64_t at = t.key_begin / block * block; at < last; at += block) {
      int from = int(t.key_begin > at ? t.key_begin - at : 0), to = int(last - at < block ? last - at : block);
      find_words(p, panel.row, panel.rows, at, *space.words, space.bias);
      if (t.what != allowed && space.words->any) {
        int low = from / step * step, high = int(rounded_up(to, step));
        space.keys.get(p, key_rows, at);
        space.keys.scores(p, panel, space.scores, low, high);
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
  Registers registers(p);
  return doubles(p) ? forward<double>(p, unit, workspace) : forward<float>(p, unit, workspace);
}
int tile_any(const Problem& p, const Tile& t, const Unit& unit, char* workspace) {
  Registers registers(p);
  return doubles(p) ? tile<double>(p, t, unit, workspace) : tile<float>(p, t, unit, workspace);
}
bool few_rows(const Problem& p) { return doubles(p) ? are_few<double>(p) : are_few<float>(p); }
size_t state_bytes(const Problem& p) {
  return doubles(p) ? few<double> * row_state<double>(p) * sizeof(double) : few<float> * row_state<float>(p) * sizeof(float);
}
int part_any(const Problem& p, const Unit& unit, int64_t first, int64_t last, char* state, char* workspace) {
  return doubles(p) ? part<double>(p, unit, first, last, state, workspace) : part<float>(p, unit, first, last, state, workspace);
}
int join_any(const Problem& p, const Unit& unit, char* states, int64_t count, char* workspace) {
  return doubles(p) ? join<double>(p, unit, states, count, workspace) : join<float>(p, unit, states, count, workspace);
}

}  // namespace

extern const Backward REGARD_NAMED(backward_);
extern const Looks REGARD_NAMED(looks_);
extern const Kernel REGARD_NAMED(kernel_) = {REGARD_NAME, rows_per_unit, panel_rows, workspace_bytes, forward_any, tile_any, few_rows, state_bytes, part_any, join_any,
                                             &REGARD_NAMED(backward_), &REGARD_NAMED(looks_)};

}  // namespace regard
