// Gradients, block by block, from lse: weights are rebuilt as p = exp(score - lse), and with delta = grad . output of a row
//
//     dV = P^T dO     dP = dO V^T     dS = P (dP - delta + dlse)     dQ = scale dS K     dK = scale dS^T Q
//
// (Dao et al. 2022, "FlashAttention", algorithm 4). Five tile products a block. The loop is the forward pass's: panels of rows
// over blocks of keys; a row's dQ grows key block by key block, a key's dK and dV grow panel by panel, in that order always, so
// that bits do not depend on how the work was cut. Masked places add exact zeros, whatever they hold.
#include "attention.h"

#include "logs.h"

namespace regard {
namespace {

template <class F>
struct Rows : Panel<F> {
  F *grad;                       // of the output, by lane
  F *query_rows, *grad_rows;     // row-major, padded to whole vectors; what is not finite is 0 there
  F *grad_query;                 // by lane
  Logs<F> lse;
  F delta[width<F>], spoiled[width<F>];
  bool any_spoiled;              // a row whose gradient is not finite: it spoils the values that it attends, no others
};

template <class F>
int64_t padded(int64_t columns) { return rounded_up(columns, Lanes<F>::N); }

template <class F>
int64_t panels_per_unit(const Problem& p) {
  int64_t bytes = 3 * (p.D + p.V) * width<F> * int64_t(sizeof(F)), panels = 256 * 1024 / bytes;
  return panels < 1 ? 1 : panels > 8 ? 8 : panels;
}

template <class F>
struct Space {
  int64_t panels, D, V, keys;   // D and V: padded to whole vectors; keys: to whole blocks
  Rows<F>* panel;
  F *scores, *kept, *grads, *slope, *bias, *ones;  // tiles by lane
  F *tame_block, *value_block, *scratch;
  mutable Keys<F> keys_of_block;
  F *grad_key, *grad_value;     // sums over rows, row-major, for all keys of the part
  Words<F>* words;

  static size_t carve(const Problem& p, char* from, Space* space) {
    size_t used = 0;
    auto take = [&](size_t bytes) { char* here = from ? from + used : nullptr; used += rounded_up(bytes, 64); return here; };
    auto numbers = [&](int64_t n) { return reinterpret_cast<F*>(take(n * sizeof(F))); };
    Space s;
    s.panels = panels_per_unit<F>(p), s.D = padded<F>(p.D), s.V = padded<F>(p.V), s.keys = rounded_up(p.S, block);
    s.panel = reinterpret_cast<Rows<F>*>(take(s.panels * sizeof(Rows<F>)));
    auto tile = [&] { return numbers(block * width<F>); };
    s.scores = tile(), s.kept = tile(), s.grads = tile(), s.slope = tile(), s.bias = tile(), s.ones = numbers(width<F>);
    s.keys_of_block.carve(p, rounded_up(p.D, step), take), s.tame_block = numbers(block * rounded_up(p.D, step));
    s.value_block = numbers(block * rounded_up(p.V, step)), s.scratch = numbers(block + s.D + s.V);
    s.grad_key = numbers(s.keys * s.D), s.grad_value = numbers(s.keys * s.V);
    s.words = reinterpret_cast<Words<F>*>(take(sizeof(Words<F>)));
    int64_t lanes = 2 * rounded_up(p.D, step) + p.V, rows = s.D + s.V;
    F* next = numbers(s.panels * width<F> * (lanes + rows));
    auto* query_pieces = reinterpret_cast<uint16_t*>(take(s.panels * query_room(p) * sizeof(uint16_t)));
    if (!space) return used;
    *space = s;
    for (int64_t i = 0; i < s.panels; ++i) {
      Rows<F>& r = s.panel[i];
      auto some = [&](int64_t n) { F* here = next; next += n * width<F>; return here; };
      r.query = some(rounded_up(p.D, step)), r.grad_query = some(rounded_up(p.D, step)), r.grad = some(p.V);
      r.query_rows = some(s.D), r.grad_rows = some(s.V), r.query_pieces = query_pieces + i * query_room(p);
    }
    return used;
  }
};

// One row of `a` as numbers of F, zeros up to `size`; returns false if one was not finite (and reads it as 0).
template <class F>
bool tame_row(const char* row, const Array& a, int64_t columns, int64_t size, F* to) {
  read_numbers(row, a.type, a.column, columns, to);
  F strange = 0;
  for (int64_t c = 0; c < columns; ++c) strange += to[c] * 0;
  for (int64_t c = columns; c < size; ++c) to[c] = 0;
  if (strange == 0) return true;
  for (int64_t c = 0; c < columns; ++c)
    if (!(to[c] - to[c] == 0)) to[c] = 0;
  return false;
}

// What a panel's rows need beside their queries.
template <class F>
void begin_rows(const Problem& p, const Gradients& g, const Space<F>& s, Rows<F>& panel, const Exponent<F>& e) {
  find_logs(p, panel, e, {s.scores, s.bias, &s.keys_of_block, s.words}, panel.lse);
  pack_lanes(p, g.output, panel.row, panel.rows, p.V, F(1), panel.grad, s.scratch);
  memset(panel.grad_query, 0, rounded_up(p.D, step) * width<F> * sizeof(F));
  panel.any_spoiled = false;
  for (int i = 0; i < width<F>; ++i) {
    panel.delta[i] = 0, panel.spoiled[i] = 1;
    if (i >= panel.rows) continue;
    const Row& row = panel.row[i];
    auto at = [&](const Array& a) { return row_of(a, p, row.item, row.head, row.query); };
    tame_row(at(p.query), p.query, p.D, s.D, panel.query_rows + i * s.D);
    F *grad = panel.grad_rows + i * s.V, *output = s.scratch;
    if (!tame_row(at(g.output), g.output, p.V, s.V, grad)) panel.spoiled[i] = NAN, panel.any_spoiled = true;
    read_numbers(at(p.output), p.output.type, p.output.column, p.V, output);
    double sum[4] = {g.lse ? -read(at(g.lse), g.lse.type) : 0};  // four, so that none waits for the last addition
    for (int64_t c = 0; c < p.V; ++c) sum[c % 4] += double(grad[c]) * double(output[c]);
    panel.delta[i] = F(sum[0] + sum[1] + (sum[2] + sum[3])) * panel.spoiled[i];
  }
}

// Weights p and gradients of weights become gradients of scores: p * (dP - delta); of the bare ones, where `slope` is given.
template <int vectors, class F>
[[gnu::noinline]] void score_gradients(F* p, const F* grads, const F* delta, const Words<F>* words, const F* slope, int from, int to) {
  constexpr int N = Lanes<F>::N;
  for (int j = from; j < to; ++j)
    for (int v = 0; v < vectors; ++v) {
      int64_t cell = j * width<F> + v * N;
      Vector<F> x = load(p + cell) * (load(grads + cell) - load(delta + v * N));
      if (slope) x = x * load(slope + cell);
      if (words) x = may_attend(*words, j, v) ? x : splat(F(0));  // whatever the slope is there, NaN too
      store(p + cell, x);
    }
}

template <class F>
void add_rows(const F* w, int rows, const F* x, int64_t columns, F* out, int from, int to) {
  constexpr int N = Lanes<F>::N;
  int64_t c = 0, left = columns / N;
  for (; left == 3 || left > 4; c += 3 * N, left -= 3) row_tile<3, F>(w, rows, x + c, columns, out + c, columns, from, to);
  for (; left >= 2; c += 2 * N, left -= 2) row_tile<2, F>(w, rows, x + c, columns, out + c, columns, from, to);
  if (left) row_tile<1, F>(w, rows, x + c, columns, out + c, columns, from, to);  // too few sums at once to be quick
}

// A row whose gradient is not finite makes NaN of the values that it attends, and only of those.
template <class F>
void spoil(const Rows<F>& panel, const Words<F>* words, F* weights, int from, int to) {
  for (int j = from; j < to; ++j)
    for (int i = 0; i < panel.rows; ++i)
      if (!words || ((words->row[i] >> j) & 1)) weights[j * width<F> + i] *= panel.spoiled[i];
}

template <class F>
void add_bias(const Problem& p, const Gradients& g, const Rows<F>& panel, const F* grads, int64_t begin, int from, int to) {
  int64_t last = p.S - begin < to ? p.S - begin : to;
  for (int i = 0; i < panel.rows; ++i) {
    const Row& row = panel.row[i];
    char* out = const_cast<char*>(row_of(g.bias, p, row.item, row.head, row.query)) + begin * g.bias.column;
    for (int64_t j = from; j < last; ++j) {
      F* cell = reinterpret_cast<F*>(out + j * g.bias.column);
      *cell += grads[j * width<F> + i];
    }
  }
}

template <class F>
void write_gradient(const Problem& p, const Array& a, int64_t item, int64_t head, int64_t row, const F* from, int64_t columns,
                    F factor, F* scratch) {
  char* out = const_cast<char*>(row_of(a, p, item, head, row));
  for (int64_t c = 0; c < columns; ++c) scratch[c] = from[c] * factor;
  write_numbers(scratch, columns, out, a.type, a.column);
}

template <class F> using ScoreGradients = void (*)(F*, const F*, const F*, const Words<F>*, const F*, int, int);

// One block of keys for one panel.
template <class F>
struct Block {
  const F *tame_keys, *values;  // null: not read yet
  int64_t tame_row, value_row, at;
};

template <class F>
void panel_block(const Problem& p, const Gradients& g, const Space<F>& s, Rows<F>& panel, const Exponent<F>& e, const Block<F>& b,
                 const Words<F>* words, int from, int to, int64_t first_key) {
  static constexpr ScoreGradients<F> gradients[] = {score_gradients<1, F>, score_gradients<2, F>, score_gradients<3, F>};
  const Pieces<F>& piece = pieces<F>(panel.rows);
  int shape = (panel.rows - 1) / Lanes<F>::N;
  F* slope = p.softcap ? s.slope : nullptr;
  s.keys_of_block.scores(p, panel, s.scores, from, to);
  if (e.bend) piece.bend(s.scores, e.scale, F(p.softcap), p.bias ? s.bias : nullptr, from, to, slope);
  piece.rebuild(s.scores, e.factor, panel.lse, words, from, to);
  piece.scores(b.values, b.value_row, panel.grad, p.V, s.grads, from, to);
  const F* weights = s.scores;
  if (p.dropout || panel.any_spoiled) {
    int64_t first = from * width<F>, count = (to - from) * width<F>;
    memcpy(s.kept + first, s.scores + first, count * sizeof(F));
    weights = s.kept;
    if (p.dropout) drop(p, panel.row, panel.rows, b.at, s.kept, from, to), drop(p, panel.row, panel.rows, b.at, s.grads, from, to);
    if (panel.any_spoiled) spoil(panel, words, s.kept, from, to);
  }
  int64_t place = b.at - first_key;
  if (g.want_keys) add_rows(weights, panel.rows, panel.grad_rows, s.V, s.grad_value + place * s.V, from, to);
  gradients[shape](s.scores, s.grads, panel.delta, words, g.bias ? nullptr : slope, from, to);
  if (g.bias) add_bias(p, g, panel, s.scores, b.at, from, to);
  if (g.want_query)
    piece.values(b.tame_keys, b.tame_row, s.scores, s.ones, panel.grad_query, rounded_up(p.D, step), from, to);
  if (g.want_keys) add_rows(s.scores, panel.rows, panel.query_rows, s.D, s.grad_key + place * s.D, from, to);
}

template <class F>
void write_queries(const Problem& p, const Gradients& g, const Space<F>& s, int64_t used) {
  for (int64_t n = 0; n < used; ++n)
    for (int i = 0; i < s.panel[n].rows; ++i) {
      const Row& row = s.panel[n].row[i];
      for (int64_t d = 0; d < p.D; ++d) s.scratch[d] = s.panel[n].grad_query[d * width<F> + i];
      write_gradient(p, g.query, row.item, row.head, row.query, s.scratch, p.D, F(p.scale), s.scratch);
    }
}

template <class F>
void write_keys(const Problem& p, const Gradients& g, const Space<F>& s, const Part& part, int64_t first_key) {
  for (int64_t j = part.key_begin; j < part.key_end; ++j) {
    int64_t place = j - first_key;
    write_gradient(p, g.key, part.rows.item, part.rows.key_head, j, s.grad_key + place * s.D, p.D, F(p.scale), s.scratch);
    write_gradient(p, g.value, part.rows.item, part.rows.key_head, j, s.grad_value + place * s.V, p.V, F(1), s.scratch);
  }
}

template <class F>
void part(const Problem& p, const Gradients& g, const Part& part, char* workspace) {
  Space<F> s;
  Space<F>::carve(p, workspace, &s);
  const Unit& unit = part.rows;
  const Exponent<F> e = exponent<F>(p);
  const int64_t group = p.H / p.G, first_key = part.key_begin / block * block;
  const bool ranges_only = !p.mask && !p.bias && !p.key_segments;
  const char* key_rows = row_of(p.key, p, unit.item, unit.key_head, 0);
  const char* value_rows = row_of(p.value, p, unit.item, unit.key_head, 0);
  for (int i = 0; i < width<F>; ++i) s.ones[i] = 1;
  if (p.bias) memset(s.bias, 0, block * width<F> * sizeof(F));
  if (g.want_keys) {
    int64_t keys = rounded_up(part.key_end - first_key, block);
    memset(s.grad_key, 0, keys * s.D * sizeof(F));
    memset(s.grad_value, 0, keys * s.V * sizeof(F));
  }
  for (int64_t r = unit.begin; r < unit.end;) {
    int64_t used = 0, begin = part.key_end, end = part.key_begin;
    for (; r < unit.end && used < s.panels; r += s.panel[used++].rows) {
      Rows<F>& panel = s.panel[used];
      panel.set(p, r, panel_end<F>(r, unit.end), [&](int64_t n) { return make_row(p, unit.item, unit.key_head * group + n / p.T, n % p.T); }, s.scratch);
      begin_rows(p, g, s, panel, e);
      if (panel.begin < begin) begin = panel.begin;
      if (panel.end > end) end = panel.end;
    }
    begin = begin < part.key_begin ? part.key_begin : begin, end = end > part.key_end ? part.key_end : end;
    for (int64_t at = begin / block * block; at < end; at += block) {
      Block<F> b{nullptr, nullptr, 0, 0, at};
      int64_t count = p.S - at < block ? p.S - at : block;
      for (int64_t n = 0; n < used; ++n) {
        Rows<F>& panel = s.panel[n];
        if (panel.outside(at)) continue;
        bool all = ranges_only && panel.inside(at);
        int from = 0, to = block;
        if (!all) {
          find_words(p, panel.row, panel.rows, at, *s.words, s.bias);
          if (!s.words->any) continue;
          all = s.words->all;
          from = __builtin_ctzll(s.words->any) / step * step;
          to = int(rounded_up(64 - __builtin_clzll(s.words->any), step));
        }
        if (!b.values) {
          s.keys_of_block.get(p, key_rows, at);
          b.values = get_block(p.value, value_rows + at * p.value.row, count, p.V, p.V, s.value_block, &b.value_row);
          b.tame_keys = s.keys_of_block.rows, b.tame_row = s.keys_of_block.row;
          tame_values(&b.tame_keys, &b.tame_row, rounded_up(count, step), rounded_up(p.D, step), s.tame_block);
        }
        panel_block(p, g, s, panel, e, b, all ? nullptr : s.words, from, to, first_key);
      }
    }
    if (g.want_query) write_queries(p, g, s, used);
  }
  if (g.want_keys) write_keys(p, g, s, part, first_key);
}

bool doubles(const Problem& p) { return p.query.type == float64; }

int64_t rows_per_unit(const Problem& p) {
  return doubles(p) ? panels_per_unit<double>(p) * width<double> : panels_per_unit<float>(p) * width<float>;
}
size_t workspace_bytes(const Problem& p) {
  return doubles(p) ? Space<double>::carve(p, nullptr, nullptr) : Space<float>::carve(p, nullptr, nullptr);
}
void part_any(const Problem& p, const Gradients& g, const Part& which, char* workspace) {
  Registers registers(p);
  doubles(p) ? part<double>(p, g, which, workspace) : part<float>(p, g, which, workspace);
}

}  // namespace

extern const Backward REGARD_NAMED(backward_) = {rows_per_unit, workspace_bytes, part_any};

}  // namespace regard
