// One block of keys: its rows as they lie or copied, in pieces where those are multiplied, and its scores for a panel.
#pragma once
#include "matrix.h"
#include "pairs.h"

namespace regard {
namespace {

template <class F>
struct Keys {
  const F* rows;
  int64_t row;  // distance of one from the next
  F* copy;      // where rows are that could not stay where they lie
  F* others;    // a block's scores without pieces, where some need that
  Cut cut;

  // Memory, as take(bytes) gives it. Copied rows are `columns` long.
  template <class Take>
  void carve(const Problem& p, int64_t columns, Take take) {
    this->columns = columns, cut = cut_of(p);
    copy = reinterpret_cast<F*>(take(block * columns * sizeof(F)));
    pieces_of_rows = reinterpret_cast<uint16_t*>(take(key_room(p) * sizeof(uint16_t)));
    others = reinterpret_cast<F*>(take(cut.keys ? block * width<F> * sizeof(F) : 0));
  }

  // The block that begins at key `at` of `key_rows`, if it is not there already; `more`: the next one will be wanted.
  void get(const Problem& p, const char* key_rows, int64_t at, bool more = false) {
    if (at == held) return;
    held = at;
    const int64_t count = p.S - at < block ? p.S - at : block;
    rows = get_block(p.key, key_rows + at * p.key.row, count, p.D, columns, copy, &row, more);
    if constexpr (has_pieces<F>)
      if (cut.keys)
        strange = with_pieces(cut.keys, [&](auto n) { return cut_keys<n.pieces>(rows, row, count, p.D, key_length(p), pieces_of_rows); });
  }

  // Scores of keys and rows that hold what pieces cannot be taken of are those of `others`.
  void take_others(const Panel<F>& panel, uint64_t strange_keys, F* s, int from, int to) const {
    for (int j = from; j < to; ++j)
      for (int i = 0; i < panel.rows; ++i)
        if ((strange_keys >> j | panel.strange >> i) & 1) s[j * width<F> + i] = others[j * width<F> + i];
  }

  // Bare scores of a panel's rows and keys [from, to) of the block, and maybe of some around them.
  void scores(const Problem& p, const Panel<F>& panel, F* s, int from, int to) const {
    const Pieces<F>& piece = pieces<F>(panel.rows);
    if constexpr (has_pieces<F>)
      if (cut.keys) {
        const int64_t length = key_length(p), steps = steps_of(p);
        multiply_keys(cut, {pieces_of_rows, block * length, length}, {panel.query_pieces, steps * by_lane}, steps, (panel.rows - 1) / side + 1, s, from, to);
        if (!(strange | panel.strange)) return;
        piece.scores(rows, row, panel.query, p.D, others, from, to);
        return take_others(panel, strange, s, from, to);
      }
    piece.scores(rows, row, panel.query, p.D, s, from, to);
  }

 private:
  int64_t columns, held = -1;
  uint16_t* pieces_of_rows;
  uint64_t strange = 0;
};

}  // namespace
}  // namespace regard
