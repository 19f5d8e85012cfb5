// Scores of bfloat16 in pairs (AVX-512 BF16): each lane multiplies two numbers by two.
#pragma once
#include "panel.h"

namespace regard {
namespace {

#if defined(REGARD_PAIRS)

// As score_tile in tiles.h, by twos along the width.
template <int vectors>
[[gnu::noinline]] void pair_tile(Left keys, Right queries, int64_t steps, float* s, int from, int to) {
  for (int j = from; j < to; j += step) {
    Vector<float> sum[step][vectors] = {};
    const uint16_t *row = keys.data + j * keys.row, *query = queries.data;
#pragma GCC unroll 1
    for (int64_t d = 0; d < steps; ++d, query += by_lane) {
      Words32 x[vectors];
      memcpy(x, query, sizeof x);
      for (int r = 0; r < step; ++r) {
        int32_t pair;
        memcpy(&pair, row + r * keys.row + d * depth, sizeof pair);
        const Words32 y = (Words32)splat(bit_cast<float>(pair));
        for (int v = 0; v < vectors; ++v) sum[r][v] = add_pairs(sum[r][v], x[v], y);
      }
    }
    for (int r = 0; r < step; ++r)
      for (int v = 0; v < vectors; ++v) store(s + (j + r) * width<float> + v * side, sum[r][v]);
  }
}

// Few rows of queries as they were (few.h). Returns those whose products may need a subnormal number, a bit each.
inline uint64_t halve_rows(int rows, const float* from, int64_t D, Bfloat16* to) {
  uint64_t found = 0;
  for (int i = 0; i < rows; ++i)
    for (int64_t d = 0; d < D; ++d) {
      const float x = from[i * D + d];
      to[i * D + d].bits = to_bfloat16(x);
      found |= uint64_t(x != 0 && fabsf(x) < 0x1p-126f) << i;
    }
  return found;
}

// Scores of keys [from, to) of a block.
inline void multiply_keys(Cut, Left keys, Right queries, int64_t steps, int vectors, float* s, int from, int to) {
  static constexpr decltype(&pair_tile<1>) tiles[] = {pair_tile<1>, pair_tile<2>, pair_tile<3>};
  tiles[vectors - 1](keys, queries, steps, s, from, to);
}

#endif

}  // namespace
}  // namespace regard
