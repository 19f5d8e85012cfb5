// Who may attend what, for one query row: pointers into the rule's arrays and a half-open range of keys.
#pragma once
#include "numbers.h"

namespace regard {

struct Row {
  int64_t item, head, query;        // which row it is
  int64_t begin, end;               // keys outside of this range are not attended
  const char *mask, *bias;          // this row's; null: none
  const char* key_segments;         // null: none
  int64_t segment;
};

static inline Row make_row(const Problem& p, int64_t item, int64_t head, int64_t query) {
  Row row = {item, head, query, 0, p.S, nullptr, nullptr, nullptr, 0};
  auto more = [](int64_t& a, int64_t b) { if (b > a) a = b; };
  auto less = [](int64_t& a, int64_t b) { if (b < a) a = b; };
  int64_t place = query + p.row_offset;
  if (p.lower) more(row.begin, place + read_int(at_item(p.lower, p, item)));
  if (p.upper) less(row.end, place + read_int(at_item(p.upper, p, item)));
  if (p.lengths) less(row.end, read_int(at_item(p.lengths, p, item)));
  if (p.first) more(row.begin, read_int(at_item(p.first, p, item) + query * p.first.row));
  if (p.past) less(row.end, read_int(at_item(p.past, p, item) + query * p.past.row));
  if (row.end < row.begin) row.end = row.begin = 0;
  if (p.mask) row.mask = at_item(p.mask, p, item) + head * p.mask.head + query * p.mask.row;
  if (p.bias) row.bias = at_item(p.bias, p, item) + head * p.bias.head + query * p.bias.row;
  if (p.key_segments) {
    row.key_segments = at_item(p.key_segments, p, item);
    row.segment = read_int(at_item(p.query_segments, p, item) + query * p.query_segments.row);
  }
  return row;
}

// A row of an operand that has heads and rows; key and value heads are shared by H / G query heads.
static inline const char* row_of(const Array& a, const Problem& p, int64_t item, int64_t head, int64_t row) {
  return at_item(a, p, item) + head * a.head + row * a.row;
}

}  // namespace regard
