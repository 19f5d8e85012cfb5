// The answer as the formula reads, in double and without haste, and how near is near enough.
#pragma once
#include <math.h>
#include <stdio.h>

#include "dispatch.h"
#include "plain.h"
#include "problems.h"

namespace regard {

// One row of the answer. `bound` is the largest sum of absolute values that went into one of its scores, `largest` the largest
// value that went into each column of the output; NaN where too little weight on a value that is not finite leaves it open
// what should come out.
struct Reference {
  std::vector<double> score, weight, output, largest;
  std::vector<bool> allowed;
  double lse = -INFINITY, bound = 0;
  bool bad_bias = false, finite = true;
};

inline Reference reference(const Problem& p, int64_t item, int64_t head, int64_t row) {
  Reference r;
  auto whole = [&](const Array& a) { return read_int(at_item(a, p, item) + row * a.row); };
  double peak = -INFINITY, sink = p.sinks ? read(p.sinks.data + head * p.sinks.head, float64) : -INFINITY;
  for (int64_t j = 0; j < p.S; ++j) {
    bool allowed = true;
    int64_t place = row + p.row_offset;
    if (p.lower) allowed &= place + read_int(at_item(p.lower, p, item)) <= j;
    if (p.upper) allowed &= j < place + read_int(at_item(p.upper, p, item));
    if (p.lengths) allowed &= j < read_int(at_item(p.lengths, p, item));
    if (p.first) allowed &= whole(p.first) <= j;
    if (p.past) allowed &= j < whole(p.past);
    if (p.mask) allowed &= at_item(p.mask, p, item)[head * p.mask.head + row * p.mask.row + j * p.mask.column] != 0;
    if (p.key_segments)
      allowed &= whole(p.query_segments) == read_int(at_item(p.key_segments, p, item) + j * p.key_segments.column);
    double bias = 0, dot = 0, size = 0;
    if (p.bias)
      bias = read(at_item(p.bias, p, item) + head * p.bias.head + row * p.bias.row + j * p.bias.column, p.bias.type);
    allowed &= bias != -INFINITY;
    for (int64_t d = 0; d < p.D; ++d) {
      double q = read(row_of(p.query, p, item, head, row) + d * p.query.column, p.query.type);
      double k = read(row_of(p.key, p, item, head / (p.H / p.G), j) + d * p.key.column, p.key.type);
      dot += q * k, size += fabs(q * k);
    }
    double s = dot * p.scale;
    if (p.softcap) s = p.softcap * tanh(s / p.softcap);
    s += bias;
    r.allowed.push_back(allowed), r.score.push_back(allowed ? s : -INFINITY);
    if (!allowed) continue;
    r.bad_bias |= !(bias < INFINITY);
    r.bound = fmax(r.bound, fmax(size, size * fabs(p.scale)) + fabs(bias) + fabs(s));
    r.finite &= s - s == 0 && size < 1e30 && r.bound < 1e30;
    peak = s > peak || s != s ? s : peak;
  }
  double top = fmax(peak, sink), total = sink == -INFINITY ? 0 : exp(sink - top);
  for (double s : r.score) total += s == -INFINITY ? 0 : exp(s - top);
  bool any = std::find(r.allowed.begin(), r.allowed.end(), true) != r.allowed.end();
  r.lse = any ? top + log(total) : sink;
  r.finite &= sink < 1e30 && !(sink < -1e30 && sink > -INFINITY) && sink == sink;
  for (double s : r.score) r.weight.push_back(s == -INFINITY ? 0 : exp(s - r.lse));
  for (int64_t c = 0; c < p.V; ++c) {
    double sum = 0, largest = 0;
    for (int64_t j = 0; j < p.S; ++j) {
      if (!r.allowed[j]) continue;
      double v = read(row_of(p.value, p, item, head / (p.H / p.G), j) + c * p.value.column, p.value.type), w = r.weight[j];
      if (p.dropout) w = keeps(p, item, head, row, j) ? w / (1 - p.dropout) : 0;
      sum += w * v;
      double size = fabs(v) / (1 - p.dropout);
      if (size > 1e30 && (size < INFINITY || r.weight[j] < 1e-30)) size = NAN;
      largest = size > largest || size != size ? size : largest;
    }
    r.output.push_back(sum), r.largest.push_back(largest);
  }
  return r;
}

inline double epsilon(Type type) { return type == float64 ? 0x1p-52 : 0x1p-23; }

// How far a row's weights may be off, relative to themselves: what rounding of each score allows.
inline double slack(const Problem& p, const Reference& r) {
  double lse = r.lse == -INFINITY ? 0 : fabs(r.lse);
  double own = p.high && p.query.type == float32 ? 0x1p-17 : epsilon(p.query.type);
  return own * (8 * r.bound + 2 * lse + 64);
}

inline bool near(Type type, double got, double want, double within) {
  double own = type == float16 ? 0x1p-11 : type == bfloat16 ? 0x1p-8 : type == float32 ? 0x1p-23 : 0x1p-52;
  double least = type == float16 ? 0x1p-24 : type == float64 ? 1e-300 : 1e-37;
  if (want - want != 0) return got == want || (got != got && want != want);
  if (type == float16 && fabs(want) > 6e4) return true;  // may be infinity
  return fabs(got - want) <= within + own * fabs(want) + least;
}

// The answer for every row.
inline std::vector<Reference> references(const Problem& p) {
  std::vector<Reference> all;
  for (int64_t item = 0; item < p.B; ++item)
    for (int64_t n = 0; n < p.H * p.T; ++n) all.push_back(reference(p, item, n / p.T, n % p.T));
  return all;
}

// Judges a whole forward pass; prints the first fault. Rows that hold or attend what is not finite are judged only where the
// formula leaves no choice.
inline bool judge_forward(const Problem& p, const std::vector<Reference>& answers, int flags, const char* kernel) {
  bool bad = false;
  for (int64_t item = 0; item < p.B; ++item)
    for (int64_t head = 0; head < p.H; ++head)
      for (int64_t row = 0; row < p.T; ++row) {
        const Reference& r = answers[(item * p.H + head) * p.T + row];
        bad |= r.bad_bias;
        auto fault = [&](const char* what, int64_t c, double got, double want) {
          fprintf(stderr, "%s: %s of item %d head %d row %d column %d is %.9g, should be %.9g (slack %g)\n", kernel, what,
                  int(item), int(head), int(row), int(c), got, want, slack(p, r));
          return false;
        };
        double relative = slack(p, r);
        if (!r.finite || relative > 0.1) continue;
        for (int64_t c = 0; c < p.V; ++c) {
          double got = read(row_of(p.output, p, item, head, row) + c * p.output.column, p.output.type);
          if (r.largest[c] != r.largest[c]) continue;
          if (!near(p.output.type, got, r.output[c], relative * r.largest[c])) return fault("output", c, got, r.output[c]);
        }
        if (!p.lse) continue;
        double got = read(row_of(p.lse, p, item, head, row), p.lse.type);
        if (r.lse == -INFINITY ? got != r.lse : !near(p.lse.type, got, r.lse, relative)) return fault("lse", 0, got, r.lse);
      }
  if ((flags == attends_bad_bias) != bad) {
    fprintf(stderr, "%s: flags %d, a bias that is +inf or NaN %s attended\n", kernel, flags, bad ? "is" : "is not");
    return false;
  }
  return true;
}

// Judges a tile. The lse that it was given is the problem's own.
inline bool judge_tile(const Problem& p, const std::vector<Reference>& answers, const Tile& t, const char* kernel) {
  for (int64_t item = 0; item < p.B; ++item)
    for (int64_t head = 0; head < p.H; ++head)
      for (int64_t row = t.row_begin; row < t.row_begin + t.rows; ++row) {
        const Reference& r = answers[(item * p.H + head) * p.T + row];
        double relative = slack(p, r);
        bool judged = r.finite && relative < 0.1;
        for (int64_t j = t.key_begin; j < t.key_begin + t.keys; ++j) {
          const char* cell = row_of(t.out, p, item, head, row - t.row_begin) + (j - t.key_begin) * t.out.column;
          double got = read(cell, t.out.type), want = t.what == allowed ? r.allowed[j] : t.what == scores ? r.score[j] : r.weight[j];
          bool exact = t.what == allowed || !r.allowed[j];
          if (exact ? got == want : !judged || near(t.out.type, got, want, relative * (t.what == scores ? 1 : want))) continue;
          fprintf(stderr, "%s: tile %d of item %d head %d row %d key %d is %.9g, should be %.9g\n", kernel, int(t.what), int(item),
                  int(head), int(row), int(j), got, want);
          return false;
        }
      }
  return true;
}

// Bytes of an output that are no element of it must be as they were.
inline bool judge_gaps(Store& store, const char* kernel) {
  std::vector<char> own(store.bytes, 0);
  store.each([&](char* at) { memset(&own[at - store.memory.get()], 1, store.item); });
  for (int64_t i = 0; i < store.bytes; ++i)
    if (!own[i] && store.memory.get()[i] != char(0xA5)) return fprintf(stderr, "%s: wrote outside its output\n", kernel), false;
  return true;
}

inline bool never() { return false; }

// Everything that a kernel offers beside the forward pass and tiles, on memory of exactly its size: what it computes is judged in
// Python, whether it stays within its arrays here.
struct Others {
  Whole& whole;
  Gradients gradients;
  Sums sums;
  Top top;
  Map map;
  std::shared_ptr<Store> sinks;
  std::vector<std::shared_ptr<Store>> written;

  Others(Source& source, Whole& w) : whole(w) {
    const Problem& p = w.p;
    Type real = p.query.type == float64 ? float64 : float32, own = source.chance(2) ? real : p.query.type;
    int64_t Array::*head = &Array::head, Array::*row = &Array::row, Array::*column = &Array::column;
    auto normal = [&] { return source.normal(); };
    auto out = [&](Array& to, Type type, std::vector<int64_t> sizes, std::vector<int64_t Array::*> roles, bool dense = false) {
      written.push_back(w.give(source, to, type, sizes, roles, false, nullptr, true, dense));
    };
    w.give(source, gradients.output, own, {p.H, p.T, p.V}, {head, row, column}, true, normal);
    if (source.chance(2)) w.give(source, gradients.lse, real, {p.H, p.T}, {head, row}, true, normal);
    out(gradients.query, own, {p.H, p.T, p.D}, {head, row, column});
    out(gradients.key, own, {p.G, p.S, p.D}, {head, row, column});
    out(gradients.value, own, {p.G, p.S, p.V}, {head, row, column});
    if (p.bias && source.chance(2)) {
      // In the bias's own shape: an axis along which the bias does not move has one place.
      std::vector<int64_t> sizes{p.H, p.T, p.S};
      int64_t before[] = {p.bias.head, p.bias.row, p.bias.column};
      out(gradients.bias, real, sizes, {head, row, column});
      for (int i = 0; i < 3; ++i)
        if (!before[i]) gradients.bias.*std::vector<int64_t Array::*>{head, row, column}[i] = 0;
      for (int a = 0; a < p.batch_axes; ++a)
        if (!p.bias.batch[a]) gradients.bias.batch[a] = 0;
    }
    Array ignored;
    int64_t distances = std::max<int64_t>(p.T + p.S - 1, 0);
    sinks = w.give(source, ignored, float64, {p.H}, {head}, false, nullptr, false);
    if (source.chance(2)) w.give(source, sums.real, boolean, {p.T}, {row}, true, [&] { return double(source.next() % 2); });
    out(sums.received, float64, {p.H, p.S}, {head, column}, true), out(sums.seen, int64, {p.H, p.S}, {head, column}, true);
    out(sums.along, float64, {p.H, distances}, {head, column}, true), out(sums.met, int64, {p.H, distances}, {head, column}, true);
    out(sums.entropy, float64, {p.H, p.T}, {head, row});
    if (source.chance(2)) {
      auto id = [&] { return double(source.next() % 4); };
      w.give(source, sums.row_ids, int64, {p.T}, {row}, true, id), w.give(source, sums.key_ids, int64, {p.S}, {column}, true, id);
      out(sums.same, float64, {p.H, 2}, {head, column}, true);
    }
    top.k = 1 + source.below(9);
    out(top.weights, real, {p.H, p.T, top.k}, {head, row, column}), out(top.positions, int64, {p.H, p.T, top.k}, {head, row, column});
    if (source.chance(2)) top.beyond = &sums;
    map.real = sums.real, map.rows = 1 + source.below(9), map.columns = 1 + source.below(9);
    for (Array* cells : {&map.total, &map.largest, &map.count})
      out(*cells, cells == &map.count ? int64 : float64, {p.H, map.rows, map.columns}, {head, row, column});
    if (source.chance(2)) sums.map = &map;
    if (!top.beyond && source.chance(2)) sums.top = &top;
  }

  bool run(const char* name) {
    Problem& p = whole.p;
    if (!p.lse) return true;
    double* to_sinks = p.sinks && sinks->strides[0] == 8 ? reinterpret_cast<double*>(sinks->origin()) : nullptr;
    backward(p, gradients, to_sinks, never);
    if (p.T && p.S) regard::sums(p, sums, never), regard::top(p, top, never), regard::map(p, map, never);
    for (auto& store : written)
      if (!judge_gaps(*store, name)) return false;
    return true;
  }
};

// Runs one problem on every kernel that is here: forward, with several threads, a tile, and, where `all`, the rest.
inline bool try_problem(Source& source, double most, bool may_be_wild, bool others = true) {
  Whole whole = make_problem(source, most, may_be_wild);
  Problem& p = whole.p;
  int count, several = 2 + int(source.below(4));
  const Kernel* const* all = kernels(&count);
  Tile t{source.pick({scores, weights, allowed}), {}, 0, 0, 0, 0};
  t.row_begin = source.below(p.T + 1), t.rows = source.below(p.T - t.row_begin + 1);
  t.key_begin = source.below(p.S + 1), t.keys = source.below(p.S - t.key_begin + 1);
  Type real = p.query.type == float64 ? float64 : float32;
  auto out = whole.give(source, t.out, t.what == allowed ? boolean : real, {p.H, t.rows, t.keys},
                        {&Array::head, &Array::row, &Array::column}, false, nullptr);
  Others rest(source, whole);
  const std::vector<Reference> answers = references(p);

  auto good_on = [&](const Kernel* kernel) {
    const char* name = kernel ? kernel->name : "plain";
    int flags = 0;
    if (kernel) {
      use_kernel(name);
      set_threads(1);
      flags = forward(p, never);
    } else {
      for (int64_t item = 0; item < p.B; ++item)
        for (int64_t n = 0; n < p.H * p.T; ++n) flags |= plain_row(p, make_row(p, item, n / p.T, n % p.T));
    }
    if (!judge_forward(p, answers, flags, name)) return false;
    if (!judge_gaps(*whole.output, name) || (whole.lse && !judge_gaps(*whole.lse, name))) return false;
    if (!kernel) return true;
    std::vector<char> alone(whole.output->memory.get(), whole.output->memory.get() + whole.output->bytes);
    set_threads(several);
    forward(p, never);
    if (memcmp(alone.data(), whole.output->memory.get(), alone.size()))
      return fprintf(stderr, "%s: %d threads give other bits than one\n", name, several), false;
    if (t.what != weights || p.lse) {
      tile(p, t, never);
      if (!judge_tile(p, answers, t, name) || !judge_gaps(*out, name)) return false;
    }
    return !others || rest.run(name);
  };
  bool good = good_on(nullptr);
  for (int i = 0; good && i < count; ++i) good = good_on(all[i]);
  if (!good)
    fprintf(stderr, "in the problem: type %d, batch axes %d, B %d H %d G %d T %d S %d D %d V %d, scale %g softcap %g dropout %g,%s%s%s%s%s%s%s%s%s\n",
            p.query.type, p.batch_axes, int(p.B), int(p.H), int(p.G), int(p.T), int(p.S), int(p.D), int(p.V), p.scale, p.softcap,
            p.dropout, p.mask ? " mask" : "", p.bias ? " bias" : "", p.sinks ? " sinks" : "", p.lower ? " lower" : "",
            p.upper ? " upper" : "", p.lengths ? " lengths" : "", p.first ? " first" : "", p.past ? " past" : "",
            p.key_segments ? " segments" : "");
  return good;
}

}  // namespace regard
