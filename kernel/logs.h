// Finds the lse of a panel's rows again where one number cannot hold it: beside the lowest float32 a logarithm is lost in any
// lse, float64 too. The panel's scores are gone over once more then, and peak and total kept apart, as the forward pass had them.
#pragma once
#include "keys.h"

namespace regard {
namespace {

// Tiles that may be overwritten.
template <class F>
struct Scratch {
  F *scores, *bias;
  Keys<F>* keys;
  Words<F>* words;
};

template <class F>
void find_logs(const Problem& p, const Panel<F>& panel, const Exponent<F>& e, const Scratch<F>& s, Logs<F>& logs) {
  const double most = p.lse.type == float64 ? 1e9 : 256;
  bool large[width<F>], any = false;
  for (int i = 0; i < width<F>; ++i) {
    const Row& row = panel.row[i];
    double lse = i < panel.rows ? read(row_of(p.lse, p, row.item, row.head, row.query), p.lse.type) : 0;
    logs.set(i, lse, e.to_natural);
    large[i] = fabs(lse) > most && fabs(lse) < INFINITY;
    any |= large[i];
  }
  if (!any) return;

  F peak[width<F>], sum[width<F>] = {}, alpha[width<F>];
  for (F& x : peak) x = -INFINITY;
  const Pieces<F>& piece = pieces<F>(panel.rows);
  const char* key_rows = row_of(p.key, p, panel.row[0].item, panel.row[0].head / (p.H / p.G), 0);
  for (int64_t at = panel.begin / block * block; at < panel.end; at += block) {
    find_words(p, panel.row, panel.rows, at, *s.words, s.bias);
    if (!s.words->any) continue;
    int from = __builtin_ctzll(s.words->any) / step * step, to = int(rounded_up(64 - __builtin_clzll(s.words->any), step));
    s.keys->get(p, key_rows, at);
    s.keys->scores(p, panel, s.scores, from, to);
    if (e.bend) piece.bend(s.scores, e.scale, F(p.softcap), p.bias ? s.bias : nullptr, from, to, nullptr);
    piece.mask(s.scores, *s.words, from, to);
    piece.exponentials(s.scores, e.factor, peak, sum, alpha, from, to);
  }
  for (int i = 0; i < panel.rows; ++i) {
    if (!large[i]) continue;
    double total = sum[i];
    if (p.sinks) total += exp(read(p.sinks.data + panel.row[i].head * p.sinks.head, float64) - peak[i] * e.to_natural);
    logs.base[i] = peak[i], logs.rest[i] = F(log2(total));
  }
}

}  // namespace
}  // namespace regard
