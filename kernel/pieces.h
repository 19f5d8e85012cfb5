// Numbers cut into pieces of bfloat16, for processors that multiply those faster than float: by matrix tiles (matrix.h) or in pairs
// (pairs.h).
//
// A float is cut into up to three pieces of bfloat16 whose sum it is, exactly; the products of pieces that are not too small to
// matter give float's own precision (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations"). Layout and roles are those of tiles.h: S^T = K Q^T and O^T = V^T P^T, a panel's rows in lanes.
#pragma once
#include "numbers.h"
#include "tiles.h"

namespace regard {
namespace {

#if defined(REGARD_PAIRS)
constexpr int side = 16, depth = 2;   // lanes of a vector, and numbers in each that are multiplied at once
#else
constexpr int side = 16, depth = 32;  // of a tile: rows, and numbers in a row; a tile of sums is side × side
#endif
constexpr int by_lane = 3 * side * depth;  // numbers of one step of the products, where a panel's rows are lanes

// How many pieces each operand is cut into; the queries as the keys. 0: they are not cut, and multiplied as in tiles.h.
struct Cut {
  int keys = 0, values = 0, weights = 0;
  bool exact = false;  // all products of two and two pieces count: scores lose nothing
};

// Decided by what every pass over a problem knows, looks too: rows, keys, their width, dtype and options. Below some size cutting
// costs more than tiles save. Pairs are twice as fast as float, which pays for one piece each: queries and keys of bfloat16, in
// problems of any size.
inline Cut cut_of([[maybe_unused]] const Problem& p) {
#if defined(REGARD_PIECES)
  if (!(fabs(p.scale) < 0x1p31)) return {};
#if defined(REGARD_PAIRS)
  if (p.query.type == bfloat16) return {1, 0, 0};
#else
#if defined(REGARD_WIDE)  // for tests: as soon as rows are not few (few.h)
  const int64_t least = side / 2 + 1, narrowest = 1;
#else
  const int64_t least = p.query.type == float32 && !p.high ? 192 : 96, narrowest = side;
#endif
  const int64_t rows = p.G ? p.H / p.G * p.T : 0;
  if (rows < least || p.S < least || p.D < narrowest) return {};
  if (p.query.type == float32) return p.high ? Cut{2, 2, 2} : Cut{3, 3, 3};
  if (p.query.type == float16) return {2, 2, 2, true};  // 11 bits in two pieces of 8
  if (p.query.type == bfloat16) return {1, 1, 2};
#endif
#endif
  return {};
}

// What is beyond these loses bits where it is cut or multiplied, as these products take subnormal numbers for 0. Scores of such keys
// and queries are computed without them; rows that attend such a value are computed again by the plain path, for `faint` ones only
// where all of the row's output is faint.
constexpr float most_key = 0x1p31f, most_value = 0x1p63f, faint_value = 0x1p-100f, faint_output = 0x1p-80f;

// The values of a block that are like that, a bit each.
struct Found {
  uint64_t strange = 0, faint = 0;
};

// How much room pieces take, in numbers, and how long a cut row of keys is.
inline int64_t steps_of(const Problem& p) { return (p.D + depth - 1) / depth; }
inline int64_t key_length(const Problem& p) {
  constexpr int whole = depth > side ? depth : side;
  return (p.D + whole - 1) / whole * whole;
}
inline int64_t query_room(const Problem& p) { return cut_of(p).keys * steps_of(p) * by_lane; }
inline int64_t key_room(const Problem& p) { return cut_of(p).keys * block * key_length(p); }

template <class F>
constexpr bool has_pieces = false;

#if defined(REGARD_PIECES)

template <>
constexpr bool has_pieces<float> = true;

// Rows of pieces, and pieces by lane as cut_lanes leaves them. Distances in numbers.
struct Left {
  const uint16_t* data;
  int64_t piece, row;
};
struct Right {
  const uint16_t* data;
  int64_t piece;
};

using Words32 = Integers<float>;
static_assert(Lanes<float>::N == side);

// The pieces of a vector, each in the upper halves. Below them the third has nothing, unless it is subnormal.
template <int pieces>
inline void cut(Vector<float> x, Words32* to) {
  for (int n = 0; n < pieces; ++n) {
    to[n] = n < 2 ? ((Words32)x + 0x8000) & -0x10000 : (Words32)x;
    x -= (Vector<float>)to[n];
  }
}

// Rows [from, past) of numbers by lane, two rows side by side as the products want them: to[piece][row / 32][lane / 16][row / 2 % 16][lane
// % 16][row % 2]. The other rows of `steps` times 32 are 0.
template <int pieces>
[[gnu::noinline]] void cut_lanes(const float* rows, int64_t from, int64_t past, int64_t steps, int vectors, uint16_t* to) {
  const int64_t piece = steps * by_lane;
  for (int64_t r = 0; r < steps * depth; r += 2)
    for (int v = 0; v < vectors; ++v) {
      auto row = [&](int64_t i) { return i >= from && i < past ? load(rows + i * width<float> + v * side) : splat(0.0f); };
      Words32 even[pieces], odd[pieces];
      cut<pieces>(row(r), even), cut<pieces>(row(r + 1), odd);
      uint16_t* at = to + r / depth * by_lane + v * side * depth + r % depth * side;
      for (int n = 0; n < pieces; ++n) {
        Words32 both = ((even[n] >> 16) & 0xffff) | (odd[n] & -0x10000);
        memcpy(at + n * piece, &both, sizeof both);
      }
    }
}

// The upper halves of a vector, side by side.
inline void store_halves(uint16_t* to, Words32 x) {
  typedef uint16_t Halves __attribute__((vector_size(2 * side)));
  Halves halves = __builtin_convertvector(x >> 16, Halves);
  memcpy(to, &halves, sizeof halves);
}

inline Vector<float> magnitude(Vector<float> x) { return (Vector<float>)((Words32)x & 0x7fffffff); }

// `count` of 64 rows of keys, cut: to[piece][row][column], padded with zeros to `padded` columns. Returns the rows that hold what
// these products cannot take, a bit each.
template <int pieces>
[[gnu::noinline]] uint64_t cut_keys(const float* keys, int64_t row, int64_t count, int64_t columns, int64_t padded, uint16_t* to) {
  uint64_t strange = 0;
  for (int64_t j = 0; j < block; ++j) {
    Words32 found = {};
    for (int64_t c = 0; c < padded; c += side) {
      Vector<float> x = splat(0.0f);
      if (j < count && c + side <= columns) x = load(keys + j * row + c);
      else if (j < count && c < columns) memcpy(&x, keys + j * row + c, (columns - c) * sizeof(float));
      found |= !(magnitude(x) <= splat(most_key));
      Words32 parts[pieces];
      cut<pieces>(x, parts);
      for (int n = 0; n < pieces; ++n) store_halves(to + (n * block + j) * padded + c, parts[n]);
    }
    if (any(found)) strange |= uint64_t(1) << j;
  }
  return strange;
}

// `count` of 64 rows of values, turned and cut: to[piece][column][row], `padded` columns of which `columns` (whole vectors) are
// there. Values that tiles cannot take are 0: 0 times one would be NaN in rows that may not attend it.
template <int pieces>
[[gnu::noinline]] Found cut_values(const float* values, int64_t row, int64_t count, int64_t columns, int64_t padded, uint16_t* to) {
  Found found;
  for (int64_t first = 0; first < block; first += side)
    for (int64_t c = 0; c < padded; c += side) {
      Vector<float> x[side];
      Words32 strange = {}, faint = {};
      for (int j = 0; j < side; ++j) {
        x[j] = first + j < count && c < columns ? load(values + (first + j) * row + c) : splat(0.0f);
        Vector<float> size = magnitude(x[j]);
        strange |= !(size <= splat(most_value)), faint |= (size < splat(faint_value)) & (size > splat(0.0f));
      }
      if (any(strange | faint))
        for (int j = 0; j < side; ++j) {
          Vector<float> size = magnitude(x[j]);
          const Words32 good = size <= splat(most_value);
          if (any(!good)) found.strange |= uint64_t(1) << (first + j);
          if (any((size < splat(faint_value)) & (size > splat(0.0f)))) found.faint |= uint64_t(1) << (first + j);
          x[j] = (Vector<float>)((Words32)x[j] & good);
        }
      transpose<float>(x);
      for (int i = 0; i < side; ++i) {
        Words32 parts[pieces];
        cut<pieces>(x[i], parts);
        for (int n = 0; n < pieces; ++n) store_halves(to + (n * padded + c + i) * block + first, parts[n]);
      }
    }
  return found;
}

// Calls run with one, two or three pieces as a constant.
template <int n>
struct Count {
  static constexpr int pieces = n;
};
template <class Run>
inline auto with_pieces(int pieces, Run run) {
  return pieces == 3 ? run(Count<3>()) : pieces == 2 ? run(Count<2>()) : run(Count<1>());
}

// A panel's queries by lane, cut. Returns the rows that hold what tiles cannot take, a bit each.
inline uint64_t cut_queries(const Problem& p, const float* query, int vectors, uint16_t* to) {
  with_pieces(cut_of(p).keys, [&](auto n) { cut_lanes<n.pieces>(query, 0, p.D, steps_of(p), vectors, to); });
  uint64_t strange = 0;
  for (int v = 0; v < vectors; ++v) {
    Words32 found = {};
    for (int64_t d = 0; d < p.D; ++d) found |= !(magnitude(load(query + d * width<float> + v * side)) <= splat(most_key));
    for (int i = 0; any(found) && i < side; ++i) strange |= uint64_t(found[i] != 0) << (v * side + i);
  }
  return strange;
}

#endif

}  // namespace
}  // namespace regard
