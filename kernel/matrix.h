// Products by matrix tiles (Intel AMX): 16 rows of 32 numbers of bfloat16 times 32 rows of 16, summed in float.
#pragma once
#include "panel.h"

namespace regard {
namespace {

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

// to[i][lane] = products of 32 rows of pieces with all of a panel's lanes: two vectors of them at a time, and one that is left.
inline void multiply(Cut cut, bool weights, Left a, Right b, int64_t from, int64_t past, int vectors, float* to) {
  const int lefts = weights ? cut.values : cut.keys, rights = weights ? cut.weights : cut.keys;
  for (int v = 0; v < vectors; v += 2)
    matrix_product_of(lefts, rights, vectors - v > 1, cut.exact && !weights)({a.data, a.piece, a.row}, {b.data + v * side * depth, b.piece},
                                                                            from, past, to + v * side, width<float>);
}

// Scores of keys [from, to) of a block, and maybe of some around them.
inline void multiply_keys(Cut cut, Left keys, Right queries, int64_t steps, int vectors, float* s, int from, int to) {
  for (int j = from / (2 * side) * (2 * side); j < to; j += 2 * side)
    multiply(cut, false, {keys.data + j * keys.row, keys.piece, keys.row}, queries, 0, steps, vectors, s + j * width<float>);
}

#endif

#if !defined(REGARD_MATRIX) || defined(REGARD_WIDE)
struct Registers {
  explicit Registers(const Problem&) {}
};
#endif

}  // namespace
}  // namespace regard
