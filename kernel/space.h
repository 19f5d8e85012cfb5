// A unit's memory: its panels of query rows, and one block of keys, values and scores at a time.
#pragma once
#include "few.h"
#include "keys.h"

namespace regard {
namespace {

// Whether a key head's rows are few: one panel, mostly empty ...
template <class F>
bool are_few(const Problem& p) { return p.H / p.G * p.T <= few<F>; }

// ... and so go along the width (few.h).
template <class F>
bool is_few(const Problem& p) { return are_few<F>(p) && !p.by_lane; }

// Panels that share one pass over the keys: as many as keep queries and outputs within the second-level cache (1 MiB or more in most
// machines with AVX-512, 2 where there are matrix tiles); copying or cutting a block of keys is shared by more rows then.
template <class F>
int64_t panels_per_unit(const Problem& p) {
  constexpr bool large = REGARD_BYTES == 64;
  const int64_t room = cut_of(p).values ? 512 : large ? 384 : 160, most = large ? 12 : 8;
  int64_t bytes = (p.D + p.V + 8) * width<F> * int64_t(sizeof(F)), panels = room * 1024 / bytes;
  return panels < 1 ? 1 : panels > most ? most : panels;
}

// A unit's memory, carved from its workspace.
template <class F>
struct Space {
  struct Rows : Panel<F> {
    bool whole;               // saw a block that all its rows may attend
    uint64_t seen[width<F>];  // not 0: has attended a key
    bool again[width<F>];     // attends a value that is not finite
    bool faint[width<F>];     // attends a value that matrix tiles may have taken for 0
    F *output, *peak, *sum;
    F *query_rows, *output_rows;  // row-major, where rows are few
    Bfloat16* query_halves;       // the same as they lie, where pairs of them are multiplied
  };
  int64_t panels, columns;
  int64_t value_rows;  // columns of values in whole pairs of matrix tiles
  mutable Keys<F> keys;
  Rows* panel;
  F *scores, *bias, *alpha, *value_block, *product;
  uint16_t *value_pieces, *weight_pieces;
  Words<F>* words;

  static size_t carve(const Problem& p, char* from, Space* space) {
    size_t used = 0;
    auto take = [&](size_t bytes) { char* here = from ? from + used : nullptr; used += rounded_up(bytes, 64); return here; };
    Space s;
    s.value_rows = rounded_up(p.V, 2 * side);
    s.panels = panels_per_unit<F>(p), s.columns = rounded_up(p.V, step > Lanes<F>::N ? step : Lanes<F>::N);
    s.panel = reinterpret_cast<Rows*>(take(s.panels * sizeof(Rows)));
    auto numbers = [&](int64_t n) { return reinterpret_cast<F*>(take(n * sizeof(F))); };
    s.scores = numbers(block * width<F>);
    s.bias = numbers(p.bias ? block * width<F> : 0);
    s.alpha = numbers(width<F>);
    s.keys.carve(p, p.D, take);
    s.value_block = numbers(block * s.columns);
    s.words = reinterpret_cast<Words<F>*>(take(sizeof(Words<F>)));
    auto pieces = [&](int64_t n) { return reinterpret_cast<uint16_t*>(take(n * sizeof(uint16_t))); };
    s.value_pieces = pieces(s.keys.cut.values * s.value_rows * block);
    s.weight_pieces = pieces(s.keys.cut.weights * block / depth * by_lane);
    s.product = numbers(s.keys.cut.values ? 2 * side * width<F> : 0);
    uint16_t* query_pieces = pieces(s.panels * query_room(p));
    F* rows = numbers(is_few<F>(p) ? few<F> * (p.D + s.columns) : 0);
    uint16_t* halves = pieces(has_pairs && is_few<F>(p) ? few<F> * p.D : 0);
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
      q.query_pieces = query_pieces + i * query_room(p);
      q.query_rows = rows, q.output_rows = rows + few<F> * p.D, q.query_halves = reinterpret_cast<Bfloat16*>(halves);  // of the one panel
    }
    return used;
  }
};

}  // namespace
}  // namespace regard
