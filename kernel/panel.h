// A panel: up to three vectors of query rows, what they may attend, and how numbers get into lanes and blocks.
#pragma once
#include "pieces.h"
#include "softmax.h"

namespace regard {
namespace {

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A row of `a` for each row of a panel, by lane: to[column][lane], times `factor`. Lanes without a row are 0.
template <class F>
[[gnu::noinline]] void pack_lanes(const Problem& p, const Array& a, const Row* rows, int count, int64_t columns, F factor, F* to, F* scratch) {
  constexpr int N = Lanes<F>::N;
  const char* from[width<F>] = {};
  for (int i = 0; i < count; ++i) from[i] = row_of(a, p, rows[i].item, rows[i].head, rows[i].query);
  int64_t done = count && in_place<F>(a, from[0]) ? columns / N * N : 0;
  squares<F>(from, count, done, factor, to);
  memset(to + done * width<F>, 0, (columns - done) * width<F> * sizeof(F));
  for (int i = 0; i < count; ++i)
    for (int64_t c = done; c < columns; c += block) {
      int64_t n = columns - c < block ? columns - c : block;
      read_numbers(from[i] + c * a.column, a.type, a.column, n, scratch);
      for (int64_t d = 0; d < n; ++d) to[(c + d) * width<F> + i] = scratch[d] * factor;
    }
}

// Where a panel that begins at row `first` ends: as many rows as fit, but four vectors as two and two. A single vector leaves
// too few sums in flight to be quick.
template <class F>
int64_t panel_end(int64_t first, int64_t last) {
  int64_t left = last - first, rows = left > width<F> && left <= 4 * Lanes<F>::N ? 2 * Lanes<F>::N : width<F>;
  return left < rows ? last : first + rows;
}

template <class F>
struct Panel {
  int rows = 0;
  Row row[width<F>];
  int64_t begin, end;              // keys that any of its rows may attend ...
  int64_t inner_begin, inner_end;  // ... and that all may, as far as ranges say
  F* query;                        // by lane
  uint16_t* query_pieces;          // the same in pieces (pieces.h), where those are multiplied
  uint64_t strange;                // rows that they do not take, a bit each

  bool outside(int64_t at) const { return at >= end || at + block <= begin; }
  bool inside(int64_t at) const { return at >= inner_begin && at + block <= inner_end; }

  // Rows [first, last), no more than fit, each made by make(number). A negative scale turns the queries' sign instead, which is
  // exact, so that bare scores can be compared.
  template <class MakeRow>
  void set(const Problem& p, int64_t first, int64_t last, MakeRow make, F* scratch) {
    rows = int(last - first);
    begin = p.S, end = 0, inner_begin = 0, inner_end = p.S;
    for (int i = 0; i < rows; ++i) {
      const Row& r = row[i] = make(first + i);
      if (r.begin < r.end) {
        if (r.begin < begin) begin = r.begin;
        if (r.end > end) end = r.end;
      }
      if (r.begin > inner_begin) inner_begin = r.begin;
      if (r.end < inner_end) inner_end = r.end;
    }
    pack_lanes(p, p.query, row, rows, p.D, p.scale < 0 ? F(-1) : F(1), query, scratch);
    if constexpr (has_pieces<F>)
      if (cut_of(p).keys) strange = cut_queries(p, query, (rows - 1) / Lanes<F>::N + 1, query_pieces);
  }
};

// A block of keys or values as rows of F: in place where it already is that, else copied, padded with zeros to whole steps.
template <class F>
const F* get_block(const Array& a, const char* rows, int64_t count, int64_t columns, int64_t padded, F* copy, int64_t* row_size,
                   bool more = false) {
  for (int64_t j = block; more && j < 2 * block; ++j)  // the next block, into the second-level cache meanwhile
    for (int64_t c = 0; c < columns * a.column; c += 64) __builtin_prefetch(rows + j * a.row + c, 0, 2);
  if (in_place<F>(a, rows) && count % step == 0 && columns == padded) {
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

// Philox for all lanes of a panel at once and one key: the words of numbers.h, lane by lane.
template <int lanes>
[[gnu::noinline]] void philox_lanes(uint64_t seed, uint32_t item, const uint32_t* heads, const uint32_t* rows, uint32_t key, uint32_t* words) {
  uint32_t c0[lanes], c1[lanes], c2[lanes], c3[lanes], k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int i = 0; i < lanes; ++i) c0[i] = item, c1[i] = heads[i], c2[i] = rows[i], c3[i] = key;
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int i = 0; i < lanes; ++i) {
      uint32_t high0 = uint32_t((uint64_t(0xD2511F53u) * c0[i]) >> 32), low0 = 0xD2511F53u * c0[i];
      uint32_t high1 = uint32_t((uint64_t(0xCD9E8D57u) * c2[i]) >> 32), low1 = 0xCD9E8D57u * c2[i];
      c0[i] = high1 ^ c1[i] ^ k0, c1[i] = low1, c2[i] = high0 ^ c3[i] ^ k1, c3[i] = low0;
    }
  for (int i = 0; i < lanes; ++i) words[i] = c0[i];
}

// Dropout after the sums are taken: kept weights grow by 1 / (1 - p), the others go.
template <class F>
void drop(const Problem& p, const Row* rows, int count, int64_t begin, F* weights, int from, int to) {
  F factor = F(1 / (1 - p.dropout));
  uint64_t least = uint64_t(ceil(p.dropout * 0x1p32));
  uint32_t heads[width<F>] = {}, queries[width<F>] = {}, words[width<F>];
  for (int i = 0; i < count; ++i) heads[i] = uint32_t(rows[i].head), queries[i] = uint32_t(rows[i].query);
  for (int j = from; j < to; ++j) {
    philox_lanes<width<F>>(p.seed, uint32_t(rows[0].item), heads, queries, uint32_t(begin + j), words);
    for (int i = 0; i < width<F>; ++i) weights[j * width<F> + i] *= words[i] >= least ? factor : F(0);
  }
}

template <class F> using ScoreTile = void (*)(const F*, int64_t, const F*, int64_t, F*, int, int);
template <class F> using ValueTile = void (*)(const F*, int64_t, const F*, const F*, F*, int64_t, int, int);
template <class F> using Bend = void (*)(F*, F, F, const F*, int, int, F*);
template <class F> using Mask = void (*)(F*, const Words<F>&, int, int);
template <class F> using Exponentials = void (*)(F*, F, F*, F*, F*, int, int);

template <class F> using Rebuild = void (*)(F*, F, const Logs<F>&, const Words<F>*, int, int);

// The pieces for panels of one, two or three vectors.
template <class F>
struct Pieces {
  ScoreTile<F> scores;
  ValueTile<F> values;
  Bend<F> bend;
  Mask<F> mask;
  Exponentials<F> exponentials;
  Rebuild<F> rebuild;
};
template <class F>
const Pieces<F>& pieces(int rows) {
  static constexpr Pieces<F> all[3] = {
      {score_tile<1, F>, value_tile<1, F>, bend_scores<1, F>, mask_scores<1, F>, exponentials<1, F>, rebuild<1, F>},
      {score_tile<2, F>, value_tile<2, F>, bend_scores<2, F>, mask_scores<2, F>, exponentials<2, F>, rebuild<2, F>},
      {score_tile<3, F>, value_tile<3, F>, bend_scores<3, F>, mask_scores<3, F>, exponentials<3, F>, rebuild<3, F>}};
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
Exponent<F> exponent(const Problem& p) {
  double size = p.scale < 0 ? -p.scale : p.scale;
  bool plain = !p.softcap && !p.bias && size > 1e-30 && size < 1e30;
  return plain ? Exponent<F>{false, 1, F(size * log2_e), size} : Exponent<F>{true, F(size), F(log2_e), 1};
}

}  // namespace
}  // namespace regard
