// Products by matrix tiles (Intel AMX): 16 rows of 32 numbers of bfloat16 times 32 rows of 16, summed in float.
//
// A float is cut into up to three pieces of bfloat16 whose sum it is, exactly; the products of pieces that are not too small to
// matter give float's own precision (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations"). Layout and roles are those of tiles.h: S^T = K Q^T and O^T = V^T P^T, a panel's rows in lanes.
#pragma once
#include "numbers.h"
#include "tiles.h"

namespace regard {
namespace {

constexpr int side = 16, depth = 32;  // of a tile: rows, and numbers in a row; a tile of sums is side × side
constexpr int by_lane = 3 * side * depth;  // numbers of one step of the products, where a panel's rows are lanes

// How many pieces each operand is cut into; the queries as the keys. 0: the problem is not one for matrix tiles.
struct Cut {
  int keys = 0, values = 0, weights = 0;
  bool exact = false;  // all products of two and two pieces count: scores lose nothing
};

// Decided by what every pass over a problem knows, looks too: rows, keys, their width, dtype and options. Below some size cutting
// costs more than the products save.
inline Cut cut_of([[maybe_unused]] const Problem& p) {
#if defined(REGARD_MATRIX)
#if defined(REGARD_WIDE)  // for tests: as soon as rows are not few (few.h)
  const int64_t least = side / 2 + 1, narrowest = 1;
#else
  const int64_t least = p.query.type == float32 && !p.high ? 192 : 96, narrowest = side;
#endif
  const int64_t rows = p.G ? p.H / p.G * p.T : 0;
  if (rows < least || p.S < least || p.D < narrowest || !(fabs(p.scale) < 0x1p31)) return {};
  if (p.query.type == float32) return p.high ? Cut{2, 2, 2} : Cut{3, 3, 3};
  if (p.query.type == float16) return {2, 2, 2, true};  // 11 bits in two pieces of 8
  if (p.query.type == bfloat16) return {1, 1, 2};
#endif
  return {};
}

// What is beyond these loses bits where it is cut or multiplied, as tiles take subnormal numbers for 0. Scores of such keys and
// queries are computed without tiles; rows that attend such a value are computed again by the plain path, for `faint` ones only
// where all of the row's output is faint.
constexpr float most_key = 0x1p31f, most_value = 0x1p63f, faint_value = 0x1p-100f, faint_output = 0x1p-80f;

// The values of a block that are like that, a bit each.
struct Found {
  uint64_t strange = 0, faint = 0;
};

// How much room pieces take, in numbers.
inline int64_t steps_of(const Problem& p) { return (p.D + depth - 1) / depth; }
inline int64_t query_room(const Problem& p) { return cut_of(p).keys * steps_of(p) * by_lane; }
inline int64_t key_room(const Problem& p) { return cut_of(p).keys * block * steps_of(p) * depth; }

template <class F>
constexpr bool has_matrix = false;

#if defined(REGARD_MATRIX)

template <>
constexpr bool has_matrix<float> = true;

#if !defined(REGARD_WIDE)
#define MATRIX_ZERO(t) _tile_zero(t)
#define MATRIX_LOAD(t, from, bytes) _tile_loadd(t, from, bytes)
#define MATRIX_STORE(t, to, bytes) _tile_stored(t, to, bytes)
#define MATRIX_PRODUCT(t, a, b) _tile_dpbf16ps(t, a, b)

// The registers' shapes belong to the thread, and others (oneDNN) set them as well: set them for each unit, leave none behind.
struct Registers {
  const bool used;
  explicit Registers(const Problem& p) : used(cut_of(p).keys) {
    if (!used) return;
    struct { uint8_t palette = 1, start = 0, reserved[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } shapes;
    for (int t = 0; t < 8; ++t) shapes.bytes[t] = 2 * depth, shapes.rows[t] = side;
    asm volatile("" ::"r"(&shapes) : "memory");  // the compiler knows of 8 of its bytes only
    _tile_loadconfig(&shapes);
  }
  ~Registers() {
    if (used) _tile_release();
  }
};
#else  // the same in plain code, for tests on other machines
struct Matrix {
  static inline thread_local uint32_t pairs[8][side][side];
  static inline thread_local float sums[8][side][side];
  static void load(int t, const void* from, int64_t bytes) {
    for (int i = 0; i < side; ++i) {
      memcpy(pairs[t][i], static_cast<const char*>(from) + i * bytes, 2 * depth);
      for (uint32_t& pair : pairs[t][i])  // subnormal numbers count as 0
        pair = (pair & 0x7f80 ? pair & 0xffff : 0) | (pair & 0x7f800000 ? pair & 0xffff0000 : 0);
    }
  }
  static void store(int t, void* to, int64_t bytes) {
    for (int i = 0; i < side; ++i) memcpy(static_cast<char*>(to) + i * bytes, sums[t][i], 4 * side);
  }
  static void product(int t, int a, int b) {
    for (int i = 0; i < side; ++i) {
      float evens[side] = {}, odds[side] = {};
      for (int k = 0; k < side; ++k) {
        const float even = bit_cast<float>(pairs[a][i][k] << 16), odd = bit_cast<float>(pairs[a][i][k] & 0xffff0000);
        for (int j = 0; j < side; ++j) {
          evens[j] += even * bit_cast<float>(pairs[b][k][j] << 16);
          odds[j] += odd * bit_cast<float>(pairs[b][k][j] & 0xffff0000);
        }
      }
      for (int j = 0; j < side; ++j) sums[t][i][j] += evens[j] + odds[j];
    }
  }
};
#define MATRIX_ZERO(t) memset(Matrix::sums[t], 0, sizeof Matrix::sums[t])
#define MATRIX_LOAD(t, from, bytes) Matrix::load(t, from, bytes)
#define MATRIX_STORE(t, to, bytes) Matrix::store(t, to, bytes)
#define MATRIX_PRODUCT(t, a, b) Matrix::product(t, a, b)
#endif

// Rows of pieces, and pieces by lane as cut_lanes leaves them. Distances in numbers.
struct Left {
  const uint16_t* data;
  int64_t piece, row;
};
struct Right {
  const uint16_t* data;
  int64_t piece;
};

struct Pair {
  int left, right;
};
// Which pieces are multiplied: with n pieces, those whose product is above 2^-8n of the whole. Small ones come first, and each
// pair shares an operand with the one before, so that only the other one is loaded.
template <int left, int right, bool exact = false>
struct Pairs;
template <> struct Pairs<3, 3> { static constexpr Pair all[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}}; };
template <> struct Pairs<2, 2> { static constexpr Pair all[] = {{1, 0}, {0, 0}, {0, 1}}; };
template <> struct Pairs<2, 2, true> { static constexpr Pair all[] = {{1, 1}, {1, 0}, {0, 0}, {0, 1}}; };
template <> struct Pairs<1, 2> { static constexpr Pair all[] = {{0, 1}, {0, 0}}; };
template <> struct Pairs<1, 1> { static constexpr Pair all[] = {{0, 0}}; };

// to[i][j] = sum over `depth` * [from, past) of left[i] * right[j], for 32 rows of left and 16 or 32 columns (`two`) of right.
template <int lefts, int rights, bool two, bool exact = false>
[[gnu::noinline]] void matrix_product(Left a, Right b, int64_t from, int64_t past, float* to, int64_t to_row) {
  constexpr auto& all = Pairs<lefts, rights, exact>::all;
  constexpr int count = sizeof all / sizeof all[0];
  asm volatile("" ::: "memory");  // loads of tiles do not say what they read
  MATRIX_ZERO(0);
  MATRIX_ZERO(1);
  MATRIX_ZERO(2);
  MATRIX_ZERO(3);
  for (int64_t step = from; step < past; ++step) {
    const uint16_t *left = a.data + step * depth, *right = b.data + step * by_lane;
#pragma GCC unroll 6
    for (int n = 0; n < count; ++n) {
      if (n == 0 || all[n].left != all[n - 1].left) {
        MATRIX_LOAD(4, left + all[n].left * a.piece, 2 * a.row);
        MATRIX_LOAD(5, left + all[n].left * a.piece + side * a.row, 2 * a.row);
      }
      if (n == 0 || all[n].right != all[n - 1].right) {
        MATRIX_LOAD(6, right + all[n].right * b.piece, 2 * depth);
        if (two) MATRIX_LOAD(7, right + all[n].right * b.piece + side * depth, 2 * depth);
      }
      MATRIX_PRODUCT(0, 4, 6);
      MATRIX_PRODUCT(2, 5, 6);
      if (two) MATRIX_PRODUCT(1, 4, 7);
      if (two) MATRIX_PRODUCT(3, 5, 7);
    }
  }
  MATRIX_STORE(0, to, 4 * to_row);
  MATRIX_STORE(2, to + side * to_row, 4 * to_row);
  if (two) MATRIX_STORE(1, to + side, 4 * to_row);
  if (two) MATRIX_STORE(3, to + side * to_row + side, 4 * to_row);
  asm volatile("" ::: "memory");
}

using MatrixProduct = void (*)(Left, Right, int64_t, int64_t, float*, int64_t);
inline MatrixProduct matrix_product_of(int lefts, int rights, bool two, bool exact = false) {
  if (exact) return two ? matrix_product<2, 2, true, true> : matrix_product<2, 2, false, true>;
  if (lefts == 3) return two ? matrix_product<3, 3, true> : matrix_product<3, 3, false>;
  if (lefts == 2) return two ? matrix_product<2, 2, true> : matrix_product<2, 2, false>;
  if (rights == 2) return two ? matrix_product<1, 2, true> : matrix_product<1, 2, false>;
  return two ? matrix_product<1, 1, true> : matrix_product<1, 1, false>;
}

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

// Rows [from, past) of numbers by lane, two rows side by side as tiles want them: to[piece][row / 32][lane / 16][row / 2 % 16][lane
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
// tiles cannot take, a bit each.
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

// to[i][lane] = products of 32 rows of pieces with all of a panel's lanes: two vectors of them at a time, and one that is left.
inline void multiply(Cut cut, bool weights, Left a, Right b, int64_t from, int64_t past, int vectors, float* to) {
  const int lefts = weights ? cut.values : cut.keys, rights = weights ? cut.weights : cut.keys;
  for (int v = 0; v < vectors; v += 2)
    matrix_product_of(lefts, rights, vectors - v > 1, cut.exact && !weights)({a.data, a.piece, a.row}, {b.data + v * side * depth, b.piece},
                                                                            from, past, to + v * side, width<float>);
}

#endif

#if !defined(REGARD_MATRIX) || defined(REGARD_WIDE)
struct Registers {
  explicit Registers(const Problem&) {}
};
#endif

}  // namespace
}  // namespace regard
