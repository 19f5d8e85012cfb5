// One call of XLA as problems of the kernel. What depends on values that were not known when the function was traced is done here
// as core/reach.py does it. Nothing is believed: every shape and dtype goes through `operand`.
#pragma once
#include <string.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "ffi.h"
#include "numbers.h"
#include "operands.h"

namespace regard {
namespace {

constexpr int most_axes = most_batch_axes + 3;
constexpr int64_t none = std::numeric_limits<int64_t>::min();  // of the attributes `lower` and `upper`: no such bound
constexpr int64_t far = int64_t(1) << 61;                      // farther than any array is long

// A buffer, or an array of our own, as `operand` reads it.
struct View {
  void* memory = nullptr;
  xla::DataType type = xla::F32;
  bool given = false;
  int axes = 0;
  int64_t size[most_axes], step[most_axes];  // steps in numbers, not in bytes

  bool is_valid() const { return given; }
  void* data() const { return memory; }
  int64_t ndim() const { return axes; }
  int64_t shape(int64_t axis) const { return size[axis]; }
  int64_t stride(int64_t axis) const { return step[axis]; }
  int64_t itemsize() const { return dtype().bits / 8; }
  nb::dlpack::dtype dtype() const {
    using Code = nb::dlpack::dtype_code;
    auto of = [](Code code, int bits) { return nb::dlpack::dtype{uint8_t(code), uint8_t(bits), 1}; };
    switch (type) {
      case xla::PRED: return of(Code::Bool, 8);
      case xla::F16: return of(Code::Float, 16);
      case xla::BF16: return of(Code::Bfloat, 16);
      case xla::F32: return of(Code::Float, 32);
      case xla::F64: return of(Code::Float, 64);
      case xla::S64: return of(Code::Int, 64);
      default: return of(Code::Complex, 8);  // what no operand is
    }
  }
  int64_t count() const {
    int64_t n = 1;
    for (int axis = 0; axis < axes; ++axis) n *= size[axis];
    return n;
  }
};

View view_of(const xla::Buffers& all, int64_t index, const char* name) {
  if (index >= all.count) bad_shape(name);
  const xla::Buffer& b = *all.buffers[index];
  if (all.types[index] != 1 || b.size < sizeof(xla::Buffer) || b.rank < 0 || b.rank > most_axes) bad_shape(name);
  View v;
  v.memory = b.data, v.type = b.type, v.given = true, v.axes = int(b.rank);
  int64_t step = 1;
  for (int axis = v.axes - 1; axis >= 0; --axis) {
    v.size[axis] = b.sizes[axis], v.step[axis] = step;
    step *= v.size[axis];
  }
  return v;
}

// (…, rows, heads, width) as (…, heads, rows, width).
View turned(View v) {
  if (v.axes < 3) bad_shape("operand to turn");
  std::swap(v.size[v.axes - 2], v.size[v.axes - 3]);
  std::swap(v.step[v.axes - 2], v.step[v.axes - 3]);
  return v;
}

int64_t integer_at(const View& v, int64_t i, const char* name) {
  switch (v.type) {
    case xla::S8: return static_cast<const int8_t*>(v.memory)[i];
    case xla::S16: return static_cast<const int16_t*>(v.memory)[i];
    case xla::S32: return static_cast<const int32_t*>(v.memory)[i];
    case xla::S64: return static_cast<const int64_t*>(v.memory)[i];
    case xla::U8: return static_cast<const uint8_t*>(v.memory)[i];
    case xla::U16: return static_cast<const uint16_t*>(v.memory)[i];
    case xla::U32: return static_cast<const uint32_t*>(v.memory)[i];
    case xla::U64: return int64_t(static_cast<const uint64_t*>(v.memory)[i]);
    default: throw nb::type_error((std::string("kernel: dtype of ") + name).c_str());
  }
}

// The arguments, in this order; behind query, key and value only those whose bits the attribute `present` has.
enum Role : int { q, k, v, mask, bias, sinks, offset, lengths, first, past, query_segments, key_segments, seed, roles };
constexpr const char* role_names[roles] = {"query", "key", "value", "mask", "bias", "sinks", "query_offset", "key_lengths",
                                           "ranges", "ranges", "segments", "segments", "seed"};

// One call. `jax.vmap` puts further axes in front of all operands, of size 1 where one is the same for all. They are batch axes
// as any others, but where the items of a batch know of each other: sinks have none, and dropout counts items. There the call
// is made once for each.
struct Call {
  const xla::Frame& frame;
  View given[roles];
  int64_t arguments = 0;  // read so far
  int front = 0;          // axes in front
  int64_t items = 1;      // calls to make
  bool by_item = false, turn = false, high = false;
  double scale, softcap, dropout;
  View own;               // the result that has query's rows and all axes of the batch
  std::vector<std::unique_ptr<char[]>> rooms;

  explicit Call(const xla::Frame& frame) : frame(frame) {
    int64_t present = whole("present");
    for (int role = 0; role < roles; ++role)
      if (role < mask || present >> role & 1) given[role] = argument(role_names[role]);
    int64_t rank = whole("rank");
    if (rank < 3 || rank > given[q].axes) bad_shape("query");
    front = given[q].axes - int(rank);
    turn = whole("turned"), high = whole("high");
    scale = real("scale"), softcap = real("softcap"), dropout = real("dropout");
    if (turn)
      for (Role role : {q, k, v}) given[role] = turned(given[role]);
    own = result(0, "result");
    if (own.axes != given[q].axes) bad_shape("result");
    by_item = front && (given[sinks].given || dropout > 0);
    for (int axis = 0; by_item && axis < front; ++axis) items *= own.size[axis];
    if (given[k].axes != given[q].axes) bad_shape("key");
    int64_t keys = given[k].size[given[k].axes - 2];
    for (Role role : {offset, query_segments, key_segments, seed}) read_integers(role);
    for (Role role : {lengths, first, past}) {
      read_integers(role);
      auto numbers = static_cast<const int64_t*>(given[role].memory);
      for (int64_t i = 0; given[role].given && i < given[role].count(); ++i)
        if (numbers[i] < 0 || numbers[i] > keys)
          throw nb::value_error((std::string(role_names[role]) + ": expected 0.." + std::to_string(keys) +
                                 ", the number of keys, received " + std::to_string(numbers[i])).c_str());
    }
    if (View& s = given[sinks]; s.given) {
      View wide = room(s, xla::F64);
      for (int64_t i = 0; i < s.count(); ++i)
        static_cast<double*>(wide.memory)[i] = read(static_cast<char*>(s.memory) + i * s.itemsize(), type_of(s.dtype(), "sinks"));
      s = wide;
    }
  }

  View argument(const char* name) { return view_of(frame.arguments, arguments++, name); }
  View result(int64_t index, const char* name) {
    View v = view_of(frame.results, index, name);
    return turn ? turned(v) : v;
  }

  const void* attribute(const char* name, xla::DataType type) const {
    const xla::Attributes& all = frame.attributes;
    for (int64_t i = 0; i < all.count; ++i)
      if (all.names[i]->length == strlen(name) && !memcmp(all.names[i]->begin, name, strlen(name)))
        if (auto value = static_cast<const xla::Scalar*>(all.values[i]); all.types[i] == xla::scalar && value->type == type)
          return value->value;
    throw nb::value_error((std::string("kernel: attribute ") + name).c_str());
  }
  int64_t whole(const char* name) const { return *static_cast<const int64_t*>(attribute(name, xla::S64)); }
  double real(const char* name) const { return *static_cast<const double*>(attribute(name, xla::F64)); }

  // Memory for as long as the call runs, of the sizes of another view.
  View room(View like, xla::DataType type) {
    int64_t step = 1;
    for (int axis = like.axes - 1; axis >= 0; --axis) like.step[axis] = step, step *= like.size[axis];
    rooms.emplace_back(new char[8 * std::max<int64_t>(step, 1)]);
    like.memory = rooms.back().get(), like.type = type, like.given = true;
    return like;
  }

  void read_integers(Role role) {
    if (!given[role].given) return;
    View wide = room(given[role], xla::S64);
    for (int64_t i = 0; i < wide.count(); ++i)
      static_cast<int64_t*>(wide.memory)[i] = integer_at(given[role], i, role_names[role]);
    given[role] = wide;
  }

  // A view as one of the calls sees it.
  View at(View v, int64_t item) const {
    if (!v.given || !by_item) return v;
    if (v.axes < front) bad_shape("operand under vmap");
    int64_t place = 0;
    for (int axis = front - 1; axis >= 0; --axis) {
      if (v.size[axis] != 1 && v.size[axis] != own.size[axis]) bad_shape("operand under vmap");
      if (v.size[axis] != 1) place += item % own.size[axis] * v.step[axis];
      item /= own.size[axis];
    }
    v.memory = static_cast<char*>(v.memory) + place * v.itemsize();
    v.axes -= front;
    std::copy(v.size + front, v.size + front + v.axes, v.size);
    std::copy(v.step + front, v.step + front + v.axes, v.step);
    return v;
  }

  // Row i sees key j where i + bound <= j, or j < i + bound; `bound` is added to the position of the first query.
  View bound(const View& offsets, int64_t bound, const Problem& p) {
    if (bound == none) return {};
    View out = room(offsets.given ? offsets : View(), xla::S64);
    for (int64_t i = 0; i < out.count(); ++i) {
      int64_t place = offsets.given ? std::clamp(static_cast<const int64_t*>(offsets.memory)[i], -far, far) : 0;
      static_cast<int64_t*>(out.memory)[i] = std::clamp(place + std::clamp(bound, -far, far), -p.T - 1, p.S + 1);
    }
    return out;
  }

  Problem problem(int64_t item) {
    View query = at(given[q], item), value = at(given[v], item), all = at(own, item);
    for (int axis = 0; axis < all.axes - 3; ++axis) {  // batch axes of one broadcast
      if (query.size[axis] != 1 && query.size[axis] != all.size[axis]) bad_shape("query (batch)");
      if (query.size[axis] != all.size[axis]) query.size[axis] = all.size[axis], query.step[axis] = 0;
    }
    Problem p = problem_of(query, at(given[k], item));
    if (value.axes < 3) bad_shape("value");
    p.V = value.size[value.axes - 1];
    p.value = operand(value, p, "value", {p.G, p.S, p.V}, {&Array::head, &Array::row, &Array::column});
    expect(p.value, {p.query.type}, "value");
    View offsets = at(given[offset], item);
    set_rule(p, scale, softcap, at(given[mask], item), at(given[bias], item), at(given[sinks], item),
             bound(offsets, whole("lower"), p), bound(offsets, whole("upper"), p), at(given[lengths], item),
             at(given[first], item), at(given[past], item), at(given[query_segments], item), at(given[key_segments], item), 0);
    if (p.key_segments) lower_segments(p);
    p.dropout = dropout, p.high = high;
    if (dropout > 0) p.seed = uint64_t(given[seed].given ? *static_cast<int64_t*>(at(given[seed], item).memory) : whole("seed"));
    return p;
  }

  // Segments to a first and a past key for each row, if every item's keys are sorted.
  void lower_segments(Problem& p) {
    auto key_at = [&](int64_t item, int64_t j) { return read_int(at_item(p.key_segments, p, item) + j * p.key_segments.column); };
    for (int64_t item = 0; item < p.B; ++item)
      for (int64_t j = 1; j < p.S; ++j)
        if (key_at(item, j) < key_at(item, j - 1)) return;
    Array ranges[2];
    for (Array& a : ranges) {
      View rows;
      rows.axes = 1, rows.size[0] = p.B * p.T;
      a.data = static_cast<char*>(room(rows, xla::S64).memory), a.type = int64, a.row = 8;
      int64_t step = 8 * p.T;
      for (int axis = p.batch_axes - 1; axis >= 0; --axis) a.batch[axis] = step, step *= p.batch_size[axis];
    }
    // How many of an item's keys come before a segment; `past`: before the one behind it.
    auto before = [&](int64_t item, int64_t segment, bool past) {
      int64_t begin = 0, end = p.S;
      while (begin < end) {
        int64_t middle = begin + (end - begin) / 2, found = key_at(item, middle);
        if (found < segment || (past && found == segment)) begin = middle + 1;
        else end = middle;
      }
      return begin;
    };
    for (int64_t item = 0; item < p.B; ++item)
      for (int64_t row = 0; row < p.T; ++row) {
        int64_t segment = read_int(at_item(p.query_segments, p, item) + row * p.query_segments.row);
        int64_t begin = before(item, segment, false), end = before(item, segment, true);
        if (p.first) begin = std::max(begin, read_int(at_item(p.first, p, item) + row * p.first.row));
        if (p.past) end = std::min(end, read_int(at_item(p.past, p, item) + row * p.past.row));
        reinterpret_cast<int64_t*>(ranges[0].data)[item * p.T + row] = begin;
        reinterpret_cast<int64_t*>(ranges[1].data)[item * p.T + row] = end;
      }
    p.first = ranges[0], p.past = ranges[1];
    p.query_segments = p.key_segments = Array();
  }
};

}  // namespace
}  // namespace regard
