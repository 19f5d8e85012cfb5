#include "plain.h"

#include <math.h>

namespace regard {

static bool may_attend(const Problem& p, const Row& row, int64_t key) {
  if (key < row.begin || key >= row.end) return false;
  if (row.mask && !row.mask[key * p.mask.column]) return false;
  if (row.key_segments && read_int(row.key_segments + key * p.key_segments.column) != row.segment) return false;
  return !row.bias || read(row.bias + key * p.bias.column, p.bias.type) != -INFINITY;
}

static double score(const Problem& p, const Row& row, const char* query, const char* key_row, int64_t key) {
  double sum = 0;
  for (int64_t d = 0; d < p.D; ++d)
    sum += read(query + d * p.query.column, p.query.type) * read(key_row + d * p.key.column, p.key.type);
  sum *= p.scale;
  if (p.softcap) sum = p.softcap * tanh(sum / p.softcap);
  return row.bias ? sum + read(row.bias + key * p.bias.column, p.bias.type) : sum;
}

int plain_row(const Problem& p, const Row& row) {
  int64_t key_head = row.head / (p.H / p.G);
  const char* query = row_of(p.query, p, row.item, row.head, row.query);
  const char* keys = row_of(p.key, p, row.item, key_head, 0);
  const char* values = row_of(p.value, p, row.item, key_head, 0);
  char* output = const_cast<char*>(row_of(p.output, p, row.item, row.head, row.query));
  double sink = p.sinks ? read(p.sinks.data + row.head * p.sinks.head, float64) : -INFINITY;

  int flags = 0;
  bool any = false;
  double peak = sink, total = 0;
  for (int64_t j = row.begin; j < row.end; ++j)
    if (may_attend(p, row, j)) {
      double s = score(p, row, query, keys + j * p.key.row, j);
      if (row.bias) {
        double b = read(row.bias + j * p.bias.column, p.bias.type);
        if (!(b < INFINITY)) flags |= attends_bad_bias;
      }
      any = true;
      if (s > peak || s != s) peak = s;  // a NaN stays: it is the whole row's
    }
  for (int64_t c = 0; c < p.V; ++c) write(output + c * p.output.column, p.output.type, 0);
  double lse = any ? NAN : sink;
  if (any && peak == peak) {
    for (int64_t j = row.begin; j < row.end; ++j)
      if (may_attend(p, row, j)) total += exp(score(p, row, query, keys + j * p.key.row, j) - peak);
    total += exp(sink - peak);
    lse = peak + log(total);
  }
  if (any)
    for (int64_t c = 0; c < p.V; ++c) {
      double sum = peak == peak ? 0 : NAN;
      for (int64_t j = row.begin; peak == peak && j < row.end; ++j)
        if (may_attend(p, row, j)) {
          double weight = exp(score(p, row, query, keys + j * p.key.row, j) - peak) / total;
          if (p.dropout) weight = keeps(p, row.item, row.head, row.query, j) ? weight / (1 - p.dropout) : 0;
          sum += weight * read(values + j * p.value.row + c * p.value.column, p.value.type);
        }
      write(output + c * p.output.column, p.output.type, sum);
    }
  if (p.lse) write(const_cast<char*>(row_of(p.lse, p, row.item, row.head, row.query)), p.lse.type, lse);
  return flags;
}

double sink_gradient(const Problem& p, const Gradients& g, int64_t head) {
  double sink = read(p.sinks.data + head * p.sinks.head, float64), sum = 0;
  for (int64_t item = 0; item < p.B; ++item)
    for (int64_t i = 0; i < p.T; ++i) {
      auto at = [&](const Array& a) { return row_of(a, p, item, head, i); };
      double through = g.lse ? read(at(g.lse), g.lse.type) : 0;
      for (int64_t c = 0; c < p.V; ++c)
        through -= read(at(g.output) + c * g.output.column, g.output.type) * read(at(p.output) + c * p.output.column, p.output.type);
      double weight = exp(sink - read(at(p.lse), p.lse.type));
      if (weight) sum += weight * through;
    }
  return sum;
}

}  // namespace regard
