// The second product through matrix tiles, in place of value_tile: a block's values, and the weights that a panel gives them.
#pragma once
#include "space.h"

namespace regard {
namespace {

#if defined(REGARD_MATRIX)

// Once a block: its values in pieces.
inline Found cut_values_of(const Space<float>& s, const float* values, int64_t value_row, int64_t count) {
  return with_pieces(s.keys.cut.values, [&](auto n) {
    return cut_values<n.pieces>(values, value_row, rounded_up(count, step), s.columns, s.value_rows, s.value_pieces);
  });
}

// output = output * alpha + values times weights, keys [from, to).
inline void matrix_values(const Space<float>& s, const Space<float>::Rows& panel, int from, int to) {
  const int vectors = (panel.rows - 1) / side + 1;
  with_pieces(s.keys.cut.weights, [&](auto n) { cut_lanes<n.pieces>(s.scores, from, to, block / depth, vectors, s.weight_pieces); });
  for (int64_t c = 0; c < s.columns; c += 2 * side) {
    multiply(s.keys.cut, true, {s.value_pieces + c * block, s.value_rows * block, block}, {s.weight_pieces, block / depth * by_lane},
             from / depth, (to + depth - 1) / depth, vectors, s.product);
    for (int64_t i = 0; i < 2 * side && c + i < s.columns; ++i)
      for (int v = 0; v < vectors; ++v) {
        float* at = panel.output + (c + i) * width<float> + v * side;
        store(at, load(at) * load(s.alpha + v * side) + load(s.product + i * width<float> + v * side));
      }
  }
}

#endif

}  // namespace
}  // namespace regard
