// The only door to Python: arrays in, pointers and strides out. It checks every shape once more, so that nothing is ever
// read outside its array, whoever calls.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <stdexcept>

#include "dispatch.h"
#include "ffi.h"
#include "operands.h"
#include "team.h"

namespace nb = nanobind;
using namespace regard;

namespace {

// Between two units: was the program interrupted? Asks every 20 ms, since asking takes the GIL, which others may hold.
thread_local std::chrono::steady_clock::time_point next_question;

void wait_with_questions() { next_question = std::chrono::steady_clock::now() + std::chrono::milliseconds(20); }

bool interrupted() {
  if (std::chrono::steady_clock::now() < next_question) return false;
  nb::gil_scoped_acquire gil;
  wait_with_questions();
  return PyErr_CheckSignals() != 0;
}

template <class Run>
int without_gil(Run run) {
  int flags;
  {
    nb::gil_scoped_release released;
    wait_with_questions();
    flags = run();
  }
  if (flags < 0) throw nb::python_error();
  return flags;
}

int forward_call(const In& query, const In& key, const In& value, const Out& output, const Out& lse, REGARD_RULE,
                 double dropout, uint64_t seed, bool high) {
  Problem p = problem_of(query, key);
  if (value.ndim() < 1) bad_shape("value");
  p.V = value.shape(value.ndim() - 1);
  p.value = operand(value, p, "value", {p.G, p.S, p.V}, {&Array::head, &Array::row, &Array::column});
  expect(p.value, {p.query.type}, "value");
  expect_own(output, p, "output", 3);
  p.output = operand(output, p, "output", {p.H, p.T, p.V}, {&Array::head, &Array::row, &Array::column});
  expect(p.output, {p.query.type}, "output");
  if (lse.is_valid()) {
    expect_own(lse, p, "lse", 2);
    p.lse = operand(lse, p, "lse", {p.H, p.T}, {&Array::head, &Array::row});
    expect(p.lse, {float64, p.query.type == float64 ? float64 : float32}, "lse");
  }
  set_rule(p, REGARD_RULE_VALUES);
  p.dropout = dropout, p.seed = seed, p.high = high;
  return without_gil([&] { return forward(p, interrupted); });
}

// DLPack's table by which a framework's tensors are read without Python (dlpack.h 1.2: DLPackExchangeAPI, as far as used).
// Any other way costs some microseconds for each tensor, as much as a short call.
struct Exchange {
  uint32_t major, minor;
  void* before[4];  // an older table; three functions that allocate, hand out and take in
  int (*read)(void* object, nb::dlpack::dltensor* to);
};

// A tensor in main memory, of four axes, as `operand` reads it.
struct Tensor {
  nb::dlpack::dltensor t;
  Tensor(const Exchange* table, nb::handle object) {
    if (table->read(object.ptr(), &t)) throw nb::python_error();
    if (t.device.device_type != nb::device::cpu::value) throw nb::type_error("kernel: device");
    auto code = nb::dlpack::dtype_code(t.dtype.code);  // integers of 16 bits are no bfloat16 here
    if (code != nb::dlpack::dtype_code::Float && code != nb::dlpack::dtype_code::Bfloat) throw nb::type_error("kernel: dtype");
    if (t.ndim != 4 || !t.strides) bad_shape("tensor (four axes)");
  }
  void* data() const { return static_cast<char*>(t.data) + t.byte_offset; }
  int64_t ndim() const { return 4; }
  int64_t shape(int64_t axis) const { return t.shape[axis]; }
  int64_t stride(int64_t axis) const { return t.strides[axis]; }
  int64_t itemsize() const { return t.dtype.bits / 8; }
  nb::dlpack::dtype dtype() const { return t.dtype; }
};

// An array of NumPy in the machine's own order of bytes, of four axes, likewise; other arrays have other ways.
struct Buffered {
  Py_buffer b = {};
  Buffered() = default;
  explicit Buffered(nb::handle object) : Buffered() {
    if (PyObject_GetBuffer(object.ptr(), &b, PyBUF_STRIDES | PyBUF_FORMAT)) throw nb::python_error();
    const char* format = b.format;
    if (!format || !format[0] || format[1] || !strchr("efd", format[0])) throw nb::type_error("kernel: dtype");
    if (b.ndim != 4) bad_shape("array (four axes)");
    int64_t steps = reinterpret_cast<intptr_t>(b.buf);
    for (int axis = 0; axis < 4; ++axis) steps |= b.strides[axis];
    if (steps % b.itemsize) throw nb::type_error("kernel: alignment");
  }
  Buffered(const Buffered&) = delete;
  ~Buffered() { PyBuffer_Release(&b); }
  void* data() const { return b.buf; }
  int64_t ndim() const { return 4; }
  int64_t shape(int64_t axis) const { return b.shape[axis]; }
  int64_t stride(int64_t axis) const { return b.strides[axis] / b.itemsize; }
  int64_t itemsize() const { return b.itemsize; }
  nb::dlpack::dtype dtype() const { return {uint8_t(nb::dlpack::dtype_code::Float), uint8_t(8 * b.itemsize), 1}; }
};

// The output alone, without options but scale and the causal rule that begins at the first key. `grouped`: key heads may be
// fewer than query heads, and more than one.
template <class A>
void forward_plain(const A& q, const A& k, const A& v, const A& out, double scale, bool causal, bool grouped) {
  static const int64_t one = 1;
  Problem p = problem_of(q, k);
  auto cells = {&Array::head, &Array::row, &Array::column};
  p.V = v.shape(3);
  p.value = operand(v, p, "value", {p.G, p.S, p.V}, cells);
  p.output = operand(out, p, "output", {p.H, p.T, p.V}, cells);
  expect(p.value, {p.query.type}, "value");
  expect(p.output, {p.query.type}, "output");
  if (p.D == 0 || out.shape(0) != q.shape(0) || !(grouped || p.G == p.H || p.G == 1)) bad_shape("query or output");
  p.scale = scale;
  if (causal) {
    p.upper.data = const_cast<char*>(reinterpret_cast<const char*>(&one));
    p.upper.type = int64, p.upper.batch[0] = 0;
  }
  without_gil([&] { return forward(p, interrupted); });
}

void forward_tensors(nb::handle query, nb::handle key, nb::handle value, nb::handle output, double scale, bool causal,
                     bool grouped) {
  nb::handle type = query.type();
  for (nb::handle other : {key, value, output})
    if (!other.type().is(type)) throw nb::type_error("kernel: tensors of one type");
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
  auto table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!table) throw nb::python_error();
  if (table->major != 1 || !table->read) throw nb::type_error("kernel: version of DLPack");
  Tensor q(table, query), k(table, key), v(table, value), out(table, output);
  join_team();
  forward_plain(q, k, v, out, scale, causal, grouped);
}

void forward_arrays(nb::handle query, nb::handle key, nb::handle value, nb::handle output, double scale, bool causal) {
  Buffered q(query), k(key), v(value), out(output);
  if (out.b.readonly) throw nb::type_error("kernel: output (read only)");
  forward_plain(q, k, v, out, scale, causal, true);
}

int tile_call(const std::string& what, const In& query, const In& key, const In& lse, const Out& out, int64_t row_begin,
              int64_t key_begin, REGARD_RULE) {
  Problem p = problem_of(query, key);
  Type real = p.query.type == float64 ? float64 : float32;
  Tile t{what == "allowed" ? allowed : what == "scores" ? scores : weights, {}, row_begin, 0, key_begin, 0};
  expect_own(out, p, "out", 3);
  t.rows = out.shape(p.batch_axes + 1), t.keys = out.shape(p.batch_axes + 2);
  if (row_begin < 0 || key_begin < 0 || row_begin > p.T - t.rows || key_begin > p.S - t.keys) bad_shape("out (outside)");
  t.out = operand(out, p, "out", {p.H, t.rows, t.keys}, {&Array::head, &Array::row, &Array::column});
  expect(t.out, {t.what == allowed ? boolean : real}, "out");
  if (lse.is_valid()) {
    p.lse = operand(lse, p, "lse", {p.H, p.T}, {&Array::head, &Array::row});
    expect(p.lse, {float64, real}, "lse");
  } else if (t.what == weights) {
    bad_shape("lse (weights need it)");
  }
  set_rule(p, REGARD_RULE_VALUES);
  return without_gil([&] { return tile(p, t, interrupted); });
}

void backward_call(const In& query, const In& key, const In& value, const In& output, const In& lse, const In& grad_output,
                   const In& grad_lse, const Out& grad_query, const Out& grad_key, const Out& grad_value, const Out& grad_bias,
                   const Out& grad_sinks, REGARD_RULE, double dropout, uint64_t seed) {
  Problem p = problem_of(query, key);
  Type real = p.query.type == float64 ? float64 : float32;
  if (value.ndim() < 1) bad_shape("value");
  p.V = value.shape(value.ndim() - 1);
  auto cells = {&Array::head, &Array::row, &Array::column};
  auto rows = {&Array::head, &Array::row};
  auto whole = [&](const Out& a, const char* name, int64_t heads, int64_t count, int64_t columns) {
    expect_own(a, p, name, 3);
    Array to = operand(a, p, name, {heads, count, columns}, cells);
    expect(to, {p.query.type, real}, name);
    return to;
  };
  p.value = operand(value, p, "value", {p.G, p.S, p.V}, cells);
  p.output = operand(output, p, "output", {p.H, p.T, p.V}, cells);
  p.lse = operand(lse, p, "lse", {p.H, p.T}, rows);
  expect(p.value, {p.query.type}, "value");
  expect(p.output, {p.query.type}, "output");
  expect(p.lse, {float64, real}, "lse");
  set_rule(p, REGARD_RULE_VALUES);
  p.dropout = dropout, p.seed = seed;
  Gradients g;
  g.output = operand(grad_output, p, "grad_output", {p.H, p.T, p.V}, cells);
  expect(g.output, {float32, float64, float16, bfloat16}, "grad_output");
  if (grad_lse.is_valid()) {
    g.lse = operand(grad_lse, p, "grad_lse", {p.H, p.T}, rows);
    expect(g.lse, {float32, float64}, "grad_lse");
  }
  g.query = whole(grad_query, "grad_query", p.H, p.T, p.D);
  g.key = whole(grad_key, "grad_key", p.G, p.S, p.D);
  g.value = whole(grad_value, "grad_value", p.G, p.S, p.V);
  if (grad_bias.is_valid()) {
    if (!bias.is_valid()) bad_shape("grad_bias (there is no bias)");
    g.bias = operand(grad_bias, p, "grad_bias", {p.H, p.T, p.S}, cells, true);
    expect(g.bias, {real}, "grad_bias");
  }
  double* to_sinks = nullptr;
  if (grad_sinks.is_valid()) {
    Array sum = operand(grad_sinks, p, "grad_sinks", {p.H}, {&Array::head});
    expect(sum, {float64}, "grad_sinks");
    if (!p.sinks || (sum.head != 8 && p.H > 1)) bad_shape("grad_sinks");
    to_sinks = reinterpret_cast<double*>(sum.data);
  }
  without_gil([&] { return backward(p, g, to_sinks, interrupted); });
}

Array real_rows(const Problem& p, const In& real) {
  if (!real.is_valid()) return Array();
  Array rows = operand(real, p, "real", {p.T}, {&Array::row}, true);
  expect(rows, {boolean}, "real");
  return rows;
}

// A head's numbers are read and written as they lie, side by side.
void expect_dense(const Problem& p, const Array& a, int64_t size, const char* name) {
  if (size > 1 && p.B && p.H && a.column != 8) bad_shape(name);
}

// The arrays of `sums`, none broadcast.
Sums sums_of(Problem& p, const In& real, const Out& received, const Out& seen, const Out& along, const Out& met) {
  auto by = [&](const Out& a, const char* name, int64_t size, Type type) {
    expect_own(a, p, name, 2);
    Array to = operand(a, p, name, {p.H, size}, {&Array::head, &Array::column});
    expect(to, {type}, name);
    expect_dense(p, to, size, name);
    return to;
  };
  Sums out;
  out.real = real_rows(p, real);
  int64_t distances = p.T + p.S > 0 ? p.T + p.S - 1 : 0;
  out.received = by(received, "received", p.S, float64), out.seen = by(seen, "seen", p.S, int64);
  out.along = by(along, "along", distances, float64), out.met = by(met, "met", distances, int64);
  return out;
}

Problem looked_at(const In& query, const In& key, const In& lse) {
  Problem p = problem_of(query, key);
  p.lse = operand(lse, p, "lse", {p.H, p.T}, {&Array::head, &Array::row});
  expect(p.lse, {float64, p.query.type == float64 ? float64 : float32}, "lse");
  return p;
}

Top top_of(Problem& p, const Out& weights, const Out& positions) {
  Top out;
  expect_own(weights, p, "weights", 3), expect_own(positions, p, "positions", 3);
  out.k = weights.shape(p.batch_axes + 2);
  out.weights = operand(weights, p, "weights", {p.H, p.T, out.k}, {&Array::head, &Array::row, &Array::column});
  out.positions = operand(positions, p, "positions", {p.H, p.T, out.k}, {&Array::head, &Array::row, &Array::column});
  expect(out.weights, {p.query.type == float64 ? float64 : float32}, "weights");
  expect(out.positions, {int64}, "positions");
  if (out.k < 1) bad_shape("weights (k)");
  return out;
}

Map map_of(Problem& p, const Array& real, const Out& total, const Out& largest, const Out& count) {
  Map out;
  out.real = real;
  expect_own(total, p, "total", 3), expect_own(largest, p, "largest", 3), expect_own(count, p, "count", 3);
  out.rows = total.shape(p.batch_axes + 1), out.columns = total.shape(p.batch_axes + 2);
  auto cells = {&Array::head, &Array::row, &Array::column};
  out.total = operand(total, p, "total", {p.H, out.rows, out.columns}, cells);
  out.largest = operand(largest, p, "largest", {p.H, out.rows, out.columns}, cells);
  out.count = operand(count, p, "count", {p.H, out.rows, out.columns}, cells);
  expect(out.total, {float64}, "total"), expect(out.largest, {float64}, "largest"), expect(out.count, {int64}, "count");
  if (out.rows < 1 || out.columns < 1) bad_shape("total");
  return out;
}

void sums_call(const In& query, const In& key, const In& lse, const In& real, const Out& received, const Out& seen, const Out& along,
               const Out& met, const Out& entropy, const In& row_ids, const In& key_ids, const Out& same, const Out& weights,
               const Out& positions, const Out& total, const Out& largest, const Out& count, REGARD_RULE) {
  Problem p = looked_at(query, key, lse);
  set_rule(p, REGARD_RULE_VALUES);
  Sums out = sums_of(p, real, received, seen, along, met);
  expect_own(entropy, p, "entropy", 2);
  out.entropy = operand(entropy, p, "entropy", {p.H, p.T}, {&Array::head, &Array::row});
  expect(out.entropy, {float64}, "entropy");
  if (same.is_valid()) {
    if (!row_ids.is_valid() || !key_ids.is_valid()) bad_shape("same (needs row_ids and key_ids)");
    expect_own(same, p, "same", 2);
    out.same = operand(same, p, "same", {p.H, 2}, {&Array::head, &Array::column});
    out.row_ids = operand(row_ids, p, "row_ids", {p.T}, {&Array::row}, true);
    out.key_ids = operand(key_ids, p, "key_ids", {p.S}, {&Array::column}, true);
    expect(out.same, {float64}, "same");
    expect_dense(p, out.same, 2, "same");
    expect(out.row_ids, {int64}, "row_ids");
    expect(out.key_ids, {int64}, "key_ids");
  }
  Top keys;
  if (weights.is_valid()) keys = top_of(p, weights, positions), out.top = &keys;
  Map cells;
  if (total.is_valid()) cells = map_of(p, out.real, total, largest, count), out.map = &cells;
  without_gil([&] { return p.T && p.S ? sums(p, out, interrupted) : 0; });
}

void top_call(const In& query, const In& key, const In& lse, const In& real, const Out& received, const Out& seen, const Out& along,
              const Out& met, const Out& weights, const Out& positions, REGARD_RULE) {
  Problem p = looked_at(query, key, lse);
  set_rule(p, REGARD_RULE_VALUES);
  Top out = top_of(p, weights, positions);
  Sums beyond;
  if (received.is_valid()) {
    beyond = sums_of(p, real, received, seen, along, met);
    out.beyond = &beyond;
  }
  without_gil([&] { return p.T && p.S ? top(p, out, interrupted) : 0; });
}

void map_call(const In& query, const In& key, const In& lse, const In& real, const Out& total, const Out& largest, const Out& count,
              REGARD_RULE) {
  Problem p = looked_at(query, key, lse);
  set_rule(p, REGARD_RULE_VALUES);
  Map out = map_of(p, real_rows(p, real), total, largest, count);
  without_gil([&] { return p.T && p.S ? map(p, out, interrupted) : 0; });
}

}  // namespace

NB_MODULE(_kernel, m) {
  m.def("forward", forward_call, nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("value").noconvert(),
        nb::arg("output").noconvert(), nb::arg("lse").none().noconvert(), REGARD_RULE_ARGUMENTS, nb::arg("dropout"),
        nb::arg("seed"), nb::arg("high"));
  m.def("forward_tensors", forward_tensors);
  m.def("forward_arrays", forward_arrays);
  m.def("tile", tile_call, nb::arg("what"), nb::arg("query").noconvert(), nb::arg("key").noconvert(),
        nb::arg("lse").none().noconvert(), nb::arg("out").noconvert(), nb::arg("row_begin"), nb::arg("key_begin"),
        REGARD_RULE_ARGUMENTS);
  m.def("backward", backward_call, nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("value").noconvert(),
        nb::arg("output").noconvert(), nb::arg("lse").noconvert(), nb::arg("grad_output").noconvert(),
        nb::arg("grad_lse").none().noconvert(), nb::arg("grad_query").noconvert(), nb::arg("grad_key").noconvert(),
        nb::arg("grad_value").noconvert(), nb::arg("grad_bias").none().noconvert(), nb::arg("grad_sinks").none().noconvert(),
        REGARD_RULE_ARGUMENTS, nb::arg("dropout"), nb::arg("seed"));
  m.def("sums", sums_call, nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("lse").noconvert(),
        nb::arg("real").none().noconvert(), nb::arg("received").noconvert(), nb::arg("seen").noconvert(),
        nb::arg("along").noconvert(), nb::arg("met").noconvert(), nb::arg("entropy").noconvert(),
        nb::arg("row_ids").none().noconvert(), nb::arg("key_ids").none().noconvert(), nb::arg("same").none().noconvert(),
        nb::arg("weights").none().noconvert(), nb::arg("positions").none().noconvert(), nb::arg("total").none().noconvert(),
        nb::arg("largest").none().noconvert(), nb::arg("count").none().noconvert(), REGARD_RULE_ARGUMENTS);
  m.def("top", top_call, nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("lse").noconvert(),
        nb::arg("real").none().noconvert(), nb::arg("received").none().noconvert(), nb::arg("seen").none().noconvert(),
        nb::arg("along").none().noconvert(), nb::arg("met").none().noconvert(), nb::arg("weights").noconvert(),
        nb::arg("positions").noconvert(), REGARD_RULE_ARGUMENTS);
  m.attr("xla_forward") = nb::capsule(reinterpret_cast<void*>(xla::forward), "xla._CUSTOM_CALL_TARGET");
  m.attr("xla_backward") = nb::capsule(reinterpret_cast<void*>(xla::backward), "xla._CUSTOM_CALL_TARGET");
  m.def("map", map_call, nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("lse").noconvert(),
        nb::arg("real").none().noconvert(), nb::arg("total").noconvert(), nb::arg("largest").noconvert(), nb::arg("count").noconvert(),
        REGARD_RULE_ARGUMENTS);
  m.def("calls", [] { return nb::make_tuple(calls().forward, calls().backward, calls().tile); });
  m.def("join_team", join_team);
  m.def("threads", threads);
  m.def("set_threads", set_threads, nb::arg("count"));
  m.def("kernels", [] {
    int count;
    const Kernel* const* present = kernels(&count);
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(present[i]->name);
    return names;
  });
  m.def("kernel", [] { return kernel().name; });
  m.def("use_kernel", [](const std::string& name) {
    if (!use_kernel(name.c_str())) throw nb::value_error(("no such kernel on this machine: " + name).c_str());
  }, nb::arg("name"));
}
