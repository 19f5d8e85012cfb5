// Attention by tiled online softmax, in linear memory: for each block of 64 keys, for each panel of query rows:
// scores -> who may attend -> exponentials -> values, while peak, sum and output of each row are kept up to date.
//
// Compiled once for each instruction set. Rows never meet: a row's bits depend on the row, its keys and the problem's sizes,
// never on its neighbours, its place in the batch or the number of threads. Masked places add exact zeros.
#include "attention.h"

#include "plain.h"
#include "softmax.h"

#if defined(REGARD_WIDE)
#define REGARD_KERNEL_TABLE kernel_wide
#define REGARD_KERNEL_NAME "wide"
#elif defined(__AVX512F__)
#define REGARD_KERNEL_TABLE kernel_avx512
#define REGARD_KERNEL_NAME "avx512"
#elif defined(__AVX2__)
#define REGARD_KERNEL_TABLE kernel_avx2
#define REGARD_KERNEL_NAME "avx2"
#else
#define REGARD_KERNEL_TABLE kernel_portable
#define REGARD_KERNEL_NAME "portable"
#endif

namespace regard {
namespace {

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Panels that share one pass over the keys: as many as keep queries and outputs within the second-level cache.
template <class F>
int64_t panels_per_unit(const Problem& p) {
  int64_t bytes = (p.D + p.V + 8) * width<F> * int64_t(sizeof(F)), panels = 160 * 1024 / bytes;
  return panels < 1 ? 1 : panels > 8 ? 8 : panels;
}

// A unit's memory, carved from its workspace.
template <class F>
struct Space {
  struct Panel {
    int rows = 0;
    Row row[width<F>];
    bool whole = false;            // saw a block that all its rows may attend
    uint64_t seen[width<F>];       // keys attended so far, block over block: only whether any
    bool again[width<F>];          // attends a value that is not finite
    int64_t begin, end;            // keys that any of its rows may attend ...
    int64_t inner_begin, inner_end;  // ... and that all may, as far as ranges say
    F *query, *output, *peak, *sum;
  };
  int64_t panels, columns;
  Panel* panel;
  F *scores, *bias, *alpha, *key_block, *value_block;
  Words<F>* words;

  static size_t carve(const Problem& p, char* from, Space* space) {
    char* at = from;
    auto take = [&](size_t bytes) { char* here = at; at += rounded_up(bytes, 64); return here; };
    Space s;
    s.panels = panels_per_unit<F>(p), s.columns = rounded_up(p.V, step);
    s.panel = reinterpret_cast<Panel*>(take(s.panels * sizeof(Panel)));
    auto numbers = [&](int64_t n) { return reinterpret_cast<F*>(take(n * sizeof(F))); };
    s.scores = numbers(block * width<F>);
    s.bias = numbers(p.bias ? block * width<F> : 0);
    s.alpha = numbers(width<F>);
    s.key_block = numbers(block * p.D);
    s.value_block = numbers(block * s.columns);
    s.words = reinterpret_cast<Words<F>*>(take(sizeof(Words<F>)));
    char* first = take(s.panels * (p.D + s.columns + 2) * width<F> * sizeof(F));
    if (!space) return at - from;
    *space = s;
    F* next = reinterpret_cast<F*>(first);
    for (int64_t i = 0; i < s.panels; ++i) {
      Panel& q = s.panel[i];
      q.query = next, next += p.D * width<F>;
      q.output = next, next += s.columns * width<F>;
      q.peak = next, next += width<F>;
      q.sum = next, next += width<F>;
    }
    return at - from;
  }
};

// Reads `count` numbers of any type, `stride` bytes apart.
template <class F>
void read_numbers(const char* from, Type type, int64_t stride, int64_t count, F* to) {
  if (type == float32 && stride == 4)
    for (int64_t i = 0; i < count; ++i) { float x; memcpy(&x, from + 4 * i, 4); to[i] = x; }
  else if (type == bfloat16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x; memcpy(&x, from + 2 * i, 2); to[i] = from_bfloat16(x); }
  else if (type == float16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x; memcpy(&x, from + 2 * i, 2); to[i] = from_float16(x); }
  else
    for (int64_t i = 0; i < count; ++i) to[i] = F(read(from + i * stride, type));
}

// Writes `count` numbers as any type, `stride` bytes apart.
template <class F>
void write_numbers(const F* from, int64_t count, char* to, Type type, int64_t stride) {
  if (type == float32 && stride == 4)
    for (int64_t i = 0; i < count; ++i) { float x = float(from[i]); memcpy(to + 4 * i, &x, 4); }
  else if (type == bfloat16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x = to_bfloat16(float(from[i])); memcpy(to + 2 * i, &x, 2); }
  else if (type == float16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x = to_float16(float(from[i])); memcpy(to + 2 * i, &x, 2); }
  else
    for (int64_t i = 0; i < count; ++i) write(to + i * stride, type, from[i]);
}

// Queries by lane. A negative scale turns their sign instead, which is exact, so that scores can be compared unscaled.
template <class F>
void pack_queries(const Problem& p, const Row* rows, int count, F* to, F* scratch) {
  F sign = p.scale < 0 ? F(-1) : F(1);
  memset(to, 0, p.D * width<F> * sizeof(F));
  for (int i = 0; i < count; ++i) {
    const char* row = row_of(p.query, p, rows[i].item, rows[i].head, rows[i].query);
    for (int64_t d = 0; d < p.D; d += block) {
      int64_t n = p.D - d < block ? p.D - d : block;
      read_numbers(row + d * p.query.column, p.query.type, p.query.column, n, scratch);
      for (int64_t e = 0; e < n; ++e) to[(d + e) * width<F> + i] = scratch[e] * sign;
    }
  }
}

// Sets up one panel for rows given one by one.
template <class F, class MakeRow>
void begin_panel(const Problem& p, typename Space<F>::Panel& panel, int64_t begin, int64_t end, MakeRow make, F* scratch) {
  panel.rows = int(end - begin < width<F> ? end - begin : width<F>);
  panel.whole = false;
  panel.begin = p.S, panel.end = 0, panel.inner_begin = 0, panel.inner_end = p.S;
  for (int i = 0; i < panel.rows; ++i) {
    Row& row = panel.row[i] = make(begin + i);
    if (row.begin < row.end) {
      if (row.begin < panel.begin) panel.begin = row.begin;
      if (row.end > panel.end) panel.end = row.end;
    }
    if (row.begin > panel.inner_begin) panel.inner_begin = row.begin;
    if (row.end < panel.inner_end) panel.inner_end = row.end;
    panel.seen[i] = 0, panel.again[i] = false;
  }
  pack_queries(p, panel.row, panel.rows, panel.query, scratch);
}

// A block of keys or values as rows of F: in place where it already is that, else copied, padded with zeros to whole steps.
template <class F>
const F* get_block(const Array& a, const char* rows, int64_t count, int64_t columns, int64_t padded, F* copy, int64_t* row_size,
                   bool more = false) {
  constexpr Type own = sizeof(F) == 4 ? float32 : float64;
  for (int64_t j = block; more && j < 2 * block; ++j)  // the next block, into the second-level cache meanwhile
    for (int64_t c = 0; c < columns * int64_t(sizeof(F)); c += 64) __builtin_prefetch(rows + j * a.row + c, 0, 2);
  bool aligned = (uintptr_t(rows) | uintptr_t(a.row)) % sizeof(F) == 0;
  if (a.type == own && a.column == int64_t(sizeof(F)) && count % step == 0 && columns == padded && aligned) {
    *row_size = a.row / int64_t(sizeof(F));
    return reinterpret_cast<const F*>(rows);
  }
  *row_size = padded;
  for (int64_t j = 0; j < rounded_up(count, step); ++j) {
    F* to = copy + j * padded;
    if (j < count) read_numbers(rows + j * a.row, a.type, a.column, columns, to);
    for (int64_t c = j < count ? columns : 0; c < padded; ++c) to[c] = 0;
  }
  return copy;
}

// Values that are not finite are read as 0 (0 times one would be NaN in rows that may not attend it); returns the keys that
// hold one, a bit each. Rows that attend such a key are computed again by the plain path.
template <class F>
uint64_t tame_values(const F** values, int64_t* row_size, int64_t count, int64_t columns, F* copy) {
  constexpr int N = Lanes<F>::N;
  Vector<F> zeros[4] = {};  // four sums, so that none waits for the last addition
  F rest = 0;
  for (int64_t j = 0; j < count; j += 4)
    for (int r = 0; r < 4; ++r) {
      const F* row = *values + (j + r) * *row_size;
      int64_t c = 0;
      for (; c + N <= columns; c += N) zeros[r] += load(row + c) * splat(F(0));
      for (; c < columns; ++c) rest += row[c] * 0;
    }
  for (int i = 0; i < N; ++i) rest += (zeros[0] + zeros[1] + zeros[2] + zeros[3])[i];
  if (rest == 0) return 0;
  uint64_t found = 0;
  for (int64_t j = 0; j < count; ++j)
    for (int64_t c = 0; c < columns; ++c) {
      F x = (*values)[j * *row_size + c];
      if (!(x - x == 0)) found |= uint64_t(1) << j;
      copy[j * columns + c] = x - x == 0 ? x : 0;
    }
  *values = copy, *row_size = columns;
  return found;
}

// Dropout after the sums are taken: kept weights grow by 1 / (1 - p), the others go.
template <class F>
void drop(const Problem& p, const Row* rows, int count, int64_t begin, F* weights, int from, int to) {
  F factor = F(1 / (1 - p.dropout));
  for (int j = from; j < to; ++j)
    for (int i = 0; i < count; ++i)
      weights[j * width<F> + i] *= keeps(p, rows[i].item, rows[i].head, rows[i].query, begin + j) ? factor : 0;
}

template <class F> using ScoreTile = void (*)(const F*, int64_t, const F*, int64_t, F*, int, int);
template <class F> using ValueTile = void (*)(const F*, int64_t, const F*, const F*, F*, int64_t, int, int);
template <class F> using Bend = void (*)(F*, F, F, const F*, int, int);
template <class F> using Mask = void (*)(F*, const Words<F>&, int, int);
template <class F> using Exponentials = void (*)(F*, F, F*, F*, F*, int, int);

// The pieces for panels of one, two or three vectors.
template <class F>
struct Pieces {
  ScoreTile<F> scores;
  ValueTile<F> values;
  Bend<F> bend;
  Mask<F> mask;
  Exponentials<F> exponentials;
};
template <class F>
const Pieces<F>& pieces(int rows) {
  static constexpr Pieces<F> all[3] = {
      {score_tile<1, F>, value_tile<1, F>, bend_scores<1, F>, mask_scores<1, F>, exponentials<1, F>},
      {score_tile<2, F>, value_tile<2, F>, bend_scores<2, F>, mask_scores<2, F>, exponentials<2, F>},
      {score_tile<3, F>, value_tile<3, F>, bend_scores<3, F>, mask_scores<3, F>, exponentials<3, F>}};
  return all[(rows - 1) / Lanes<F>::N];
}

// How scores become exponents of two. Plain scores stay bare dot products until then; with a cap, a bias or a scale too small
// to survive being a factor of -inf they are scaled first.
template <class F>
struct Exponent {
  bool bend;
  F scale, factor;   // applied to the dot product; to (score - peak)
  double to_natural; // peak times this is in the units of lse
};
template <class F>
Exponent<F> exponent(const Problem& p, bool always_bend = false) {
  double size = p.scale < 0 ? -p.scale : p.scale;
  bool plain = !always_bend && !p.softcap && !p.bias && size > 1e-30 && size < 1e30;
  return plain ? Exponent<F>{false, 1, F(size * log2_e), size} : Exponent<F>{true, F(size), F(log2_e), 1};
}

// A panel's end: output = sum / total, lse, the sink's share; empty rows; rows to compute again. `scratch` holds one row.
template <class F>
int finish(const Problem& p, typename Space<F>::Panel& panel, const Exponent<F>& e, int64_t columns, F* scratch) {
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
  const bool ranges_only = !p.mask && !p.bias && !p.key_segments;
  int flags = 0;
  int64_t begin = p.S, end = 0, used = 0;
  if (p.bias) memset(space.bias, 0, block * width<F> * sizeof(F));
  for (int64_t r = unit.begin; r < unit.end; r += width<F>, ++used) {
    auto& panel = space.panel[used];
    begin_panel<F>(p, panel, r, unit.end, [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / p.T, n % p.T); },
                   space.scores);
    memset(panel.output, 0, (space.columns + 2) * width<F> * sizeof(F));
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
      if (at >= panel.end || at + block <= panel.begin) continue;
      const Pieces<F>& piece = pieces<F>(panel.rows);
      bool all = ranges_only && at >= panel.inner_begin && at + block <= panel.inner_end;
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
      piece.scores(keys, key_row, panel.query, p.D, space.scores, from, to);
      if (e.bend) piece.bend(space.scores, e.scale, F(p.softcap), p.bias ? space.bias : nullptr, from, to);
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
      piece.values(values, value_row, space.scores, space.alpha, panel.output, space.columns, from, to);
    }
  }
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
  double natural = e.to_natural;
  if (p.bias) memset(space.bias, 0, block * width<F> * sizeof(F));
  for (int64_t r = unit.begin; r < unit.end; r += width<F>) {
    auto& panel = space.panel[0];
    begin_panel<F>(p, panel, r, unit.end,
                   [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / t.rows, t.row_begin + n % t.rows); },
                   space.scores);
    const Pieces<F>& piece = pieces<F>(panel.rows);
    double lse[width<F>];
    for (int i = 0; i < panel.rows; ++i)
      lse[i] = t.what == weights ? read(row_of(p.lse, p, panel.row[i].item, panel.row[i].head, panel.row[i].query), p.lse.type) : 0;
    for (int64_t at = t.key_begin / block * block; at < last; at += block) {
      int from = int(t.key_begin > at ? t.key_begin - at : 0), to = int(last - at < block ? last - at : block);
      find_words(p, panel.row, panel.rows, at, *space.words, space.bias);
      if (t.what != allowed && space.words->any) {
        int64_t key_row, count = p.S - at < block ? p.S - at : block;
        int low = from / step * step, high = int(rounded_up(to, step));
        const F* keys = get_block(p.key, key_rows + at * p.key.row, count, p.D, p.D, space.key_block, &key_row);
        piece.scores(keys, key_row, panel.query, p.D, space.scores, low, high);
        if (e.bend) piece.bend(space.scores, e.scale, F(p.softcap), p.bias ? space.bias : nullptr, low, high);
        for (int j = from; j < to; ++j)
          for (int i = 0; i < panel.rows; ++i) {
            // In double: the scores are the forward pass's own, and so is what their rounding did; only lse must not add to it.
            F& s = space.scores[j * width<F> + i];
            s = F(s * natural - lse[i]);
          }
        if (t.what == weights)
          for (int j = from; j < to; ++j)
            for (int v = 0; v < 3; ++v) {
              F* s = space.scores + j * width<F> + v * Lanes<F>::N;
              store(s, exp2(load(s) * splat(F(log2_e))));
            }
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

extern const Kernel REGARD_KERNEL_TABLE;
const Kernel REGARD_KERNEL_TABLE = {REGARD_KERNEL_NAME, rows_per_unit, panel_rows, workspace_bytes, forward_any, tile_any};

}  // namespace regard
