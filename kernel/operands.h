// Arrays as they come from Python, read as the kernel's operands: pointers and strides, with every shape and dtype checked.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>

#include "attention.h"

namespace regard {
namespace {

namespace nb = nanobind;

using In = nb::ndarray<nb::ro>;
using Out = nb::ndarray<>;

Type type_of(nb::dlpack::dtype t, const char* name) {
  using Code = nb::dlpack::dtype_code;
  auto code = Code(t.code);
  if (t.lanes == 1) {
    if (code == Code::Float && t.bits == 32) return float32;
    if (code == Code::Float && t.bits == 64) return float64;
    if (code == Code::Float && t.bits == 16) return float16;
    if ((code == Code::Bfloat || code == Code::UInt) && t.bits == 16) return bfloat16;
    if (code == Code::Bool) return boolean;
    if (code == Code::Int && t.bits == 64) return int64;
  }
  throw nb::type_error((std::string("kernel: dtype of ") + name).c_str());
}

[[noreturn]] void bad_shape(const char* name) { throw nb::value_error((std::string("kernel: shape of ") + name).c_str()); }

// Reads one operand whose last axes are `sizes` (-1: any) and go to `strides`; all axes before them are batch axes, aligned
// to the right. `broadcasts`: the last axes may also be 1 or absent.
template <class A>
Array operand(const A& a, const Problem& p, const char* name, std::initializer_list<int64_t> sizes,
              std::initializer_list<int64_t Array::*> strides, bool broadcasts = false) {
  Array out;
  out.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(a.data())));
  out.type = type_of(a.dtype(), name);
  int64_t bytes = a.itemsize(), axes = a.ndim();
  for (int axis = 0; axis < p.batch_axes; ++axis) out.batch[axis] = 0;
  auto size = sizes.end();
  auto stride = strides.end();
  while (size != sizes.begin()) {
    --size, --stride;
    if (--axes < 0) {
      if (broadcasts) continue;
      bad_shape(name);
    }
    int64_t n = a.shape(axes);
    if (n != *size && !(broadcasts && n == 1)) bad_shape(name);
    out.*(*stride) = n == 1 && *size != 1 ? 0 : a.stride(axes) * bytes;
  }
  for (int axis = p.batch_axes; axes > 0;) {
    int64_t n = a.shape(--axes);
    if (--axis < 0) {
      if (n == 1) continue;
      bad_shape(name);
    }
    if (n != 1 && n != p.batch_size[axis]) bad_shape(name);
    out.batch[axis] = n == 1 ? 0 : a.stride(axes) * bytes;
  }
  if (!out.data) {  // an empty array may have no memory at all; a null pointer means "not given"
    static char nothing[8];
    out.data = nothing;
  }
  return out;
}

// What is written has `axes` axes behind all batch axes, and every item its own place.
template <class A>
void expect_own(const A& a, const Problem& p, const char* name, int axes) {
  if (int(a.ndim()) != p.batch_axes + axes) bad_shape(name);
  for (int axis = 0; axis < p.batch_axes; ++axis)
    if (int64_t(a.shape(axis)) != p.batch_size[axis]) bad_shape(name);
}

void expect(const Array& a, std::initializer_list<Type> types, const char* name) {
  for (Type t : types)
    if (a.type == t) return;
  throw nb::type_error((std::string("kernel: dtype of ") + name).c_str());
}

// The thirteen values of the rule (Call.rule), and as they come from Python.
#define REGARD_RULE_OF(A)                                                                                               \
  double scale, double softcap, const A &mask, const A &bias, const A &sinks, const A &lower, const A &upper,           \
      const A &lengths, const A &first, const A &past, const A &query_segments, const A &key_segments,                  \
      int64_t row_offset
#define REGARD_RULE REGARD_RULE_OF(In)
#define REGARD_RULE_VALUES \
  scale, softcap, mask, bias, sinks, lower, upper, lengths, first, past, query_segments, key_segments, row_offset
#define REGARD_RULE_ARGUMENTS                                                                                           \
  nb::arg("scale"), nb::arg("softcap"), nb::arg("mask").none().noconvert(), nb::arg("bias").none().noconvert(),         \
      nb::arg("sinks").none().noconvert(), nb::arg("lower").none().noconvert(), nb::arg("upper").none().noconvert(),    \
      nb::arg("lengths").none().noconvert(), nb::arg("first").none().noconvert(), nb::arg("past").none().noconvert(),   \
      nb::arg("query_segments").none().noconvert(), nb::arg("key_segments").none().noconvert(), nb::arg("row_offset")

template <class A>
Problem problem_of(const A& query, const A& key) {
  Problem p;
  int axes = int(query.ndim()) - 3;
  if (axes < 0 || axes > most_batch_axes || key.ndim() < 3) bad_shape("query or key");
  p.batch_axes = axes;
  for (int axis = 0; axis < axes; ++axis) p.B *= p.batch_size[axis] = int64_t(query.shape(axis));
  p.H = query.shape(axes), p.T = query.shape(axes + 1), p.D = query.shape(axes + 2);
  p.G = key.shape(key.ndim() - 3), p.S = key.shape(key.ndim() - 2);
  if (p.G ? p.H % p.G != 0 : p.H != 0) bad_shape("key (heads)");
  p.query = operand(query, p, "query", {p.H, p.T, p.D}, {&Array::head, &Array::row, &Array::column});
  p.key = operand(key, p, "key", {p.G, p.S, p.D}, {&Array::head, &Array::row, &Array::column});
  expect(p.query, {float32, float64, float16, bfloat16}, "query");
  expect(p.key, {p.query.type}, "key");
  return p;
}

template <class A>
void set_rule(Problem& p, REGARD_RULE_OF(A)) {
  p.scale = scale, p.softcap = softcap, p.row_offset = row_offset;
  auto given = [&](const A& a, Array& to, const char* name, std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t Array::*> strides, bool broadcasts, std::initializer_list<Type> types) {
    if (!a.is_valid()) return;
    to = operand(a, p, name, sizes, strides, broadcasts);
    expect(to, types, name);
  };
  auto cells = {&Array::head, &Array::row, &Array::column};
  given(mask, p.mask, "mask", {p.H, p.T, p.S}, cells, true, {boolean});
  given(bias, p.bias, "bias", {p.H, p.T, p.S}, cells, true, {float32, float64, float16, bfloat16});
  if (sinks.is_valid() && sinks.ndim() != 1) bad_shape("sinks");
  given(sinks, p.sinks, "sinks", {p.H}, {&Array::head}, false, {float64});
  given(lower, p.lower, "lower", {}, {}, false, {int64});
  given(upper, p.upper, "upper", {}, {}, false, {int64});
  given(lengths, p.lengths, "lengths", {}, {}, false, {int64});
  given(first, p.first, "first", {p.T}, {&Array::row}, true, {int64});
  given(past, p.past, "past", {p.T}, {&Array::row}, true, {int64});
  if (query_segments.is_valid() != key_segments.is_valid()) bad_shape("segments (one given)");
  given(query_segments, p.query_segments, "query_segments", {p.T}, {&Array::row}, true, {int64});
  given(key_segments, p.key_segments, "key_segments", {p.S}, {&Array::column}, true, {int64});
}

}  // namespace
}  // namespace regard
