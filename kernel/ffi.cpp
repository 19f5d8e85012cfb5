// Attention as two custom calls of XLA, forward and backward, for JAX. XLA calls from its own threads, with neither Python nor
// its lock, so nothing of Python is touched here.
#include <cmath>

#include "dispatch.h"
#include "ffi_call.h"

namespace regard {
namespace {

bool never() { return false; }  // there is no Python here to interrupt a call

// Results: output, and, where there are such, lse and what its float32 leaves out of its float64.
void forward_call(Call& c) {
  if (c.arguments != c.frame.arguments.count) bad_shape("arguments (too many)");
  for (int64_t item = 0; item < c.items; ++item) {
    Problem p = c.problem(item);
    View output = c.at(c.own, item), lse, rest, exact;
    expect_own(output, p, "output", 3);
    p.output = operand(output, p, "output", {p.H, p.T, p.V}, {&Array::head, &Array::row, &Array::column});
    expect(p.output, {p.query.type}, "output");
    if (c.frame.results.count > 1) {
      exact = lse = c.at(view_of(c.frame.results, 1, "lse"), item);
      if (lse.type != (p.query.type == float64 ? xla::F64 : xla::F32)) throw nb::type_error("kernel: dtype of lse");
      if (c.frame.results.count > 2) {
        rest = c.at(view_of(c.frame.results, 2, "rest of lse"), item);
        if (lse.type != xla::F32 || rest.type != xla::F32) throw nb::type_error("kernel: dtype of rest of lse");
        expect_own(rest, p, "rest of lse", 2);
        exact = c.room(lse, xla::F64);
      }
      expect_own(exact, p, "lse", 2);
      p.lse = operand(exact, p, "lse", {p.H, p.T}, {&Array::head, &Array::row});
    }
    forward(p, never);
    if (!rest.given) continue;
    operand(rest, p, "rest of lse", {p.H, p.T}, {&Array::head, &Array::row});
    for (int64_t i = 0; i < lse.count(); ++i) {
      double whole = static_cast<double*>(exact.memory)[i];
      float high = float(whole);
      static_cast<float*>(lse.memory)[i] = high;
      static_cast<float*>(rest.memory)[i] = std::isfinite(whole) ? float(whole - high) : 0;
    }
  }
}

// Behind the call's own arguments: output, lse, its rest (where it is float32), the gradients of output and, where lse was given
// out, of lse. Results: the gradients of query, key and value, for every item of the batch, and of bias and sinks where
// `wanted` has their bits.
void backward_call(Call& c) {
  View output = c.argument("output"), lse = c.argument("lse"), rest;
  if (lse.type == xla::F32) rest = c.argument("rest of lse");
  View grad_output = c.argument("grad_output"), grad_lse;
  if (c.arguments < c.frame.arguments.count) grad_lse = c.argument("grad_lse");
  if (c.arguments != c.frame.arguments.count) bad_shape("arguments (too many)");
  if (c.turn) output = turned(output), grad_output = turned(grad_output);
  View exact = lse;
  if (rest.given) {
    bool same = rest.type == xla::F32 && rest.axes == lse.axes && std::equal(lse.size, lse.size + lse.axes, rest.size);
    if (!same) bad_shape("rest of lse");
    exact = c.room(lse, xla::F64);
    for (int64_t i = 0; i < lse.count(); ++i)
      static_cast<double*>(exact.memory)[i] = double(static_cast<float*>(lse.memory)[i]) + static_cast<float*>(rest.memory)[i];
  }
  View of_key = c.result(1, "grad_key"), of_value = c.result(2, "grad_value"), of_bias, of_sinks;
  int64_t wanted = c.whole("wanted"), next = 3;
  if (wanted >> bias & 1) of_bias = view_of(c.frame.results, next++, "grad_bias");
  if (wanted >> sinks & 1) of_sinks = view_of(c.frame.results, next++, "grad_sinks");
  if (of_bias.given && !c.given[bias].given) bad_shape("grad_bias (there is no bias)");
  if (of_sinks.given && !c.given[sinks].given) bad_shape("grad_sinks (there are none)");
  if (next != c.frame.results.count) bad_shape("results");

  auto cells = {&Array::head, &Array::row, &Array::column};
  auto rows = {&Array::head, &Array::row};
  for (int64_t item = 0; item < c.items; ++item) {
    Problem p = c.problem(item);
    Type real = p.query.type == float64 ? float64 : float32;
    p.output = operand(c.at(output, item), p, "output", {p.H, p.T, p.V}, cells);
    p.lse = operand(c.at(exact, item), p, "lse", {p.H, p.T}, rows);
    expect(p.output, {p.query.type}, "output");
    expect(p.lse, {float64}, "lse");
    Gradients g;
    g.output = operand(c.at(grad_output, item), p, "grad_output", {p.H, p.T, p.V}, cells);
    expect(g.output, {p.query.type}, "grad_output");
    if (grad_lse.given) {
      g.lse = operand(c.at(grad_lse, item), p, "grad_lse", {p.H, p.T}, rows);
      expect(g.lse, {real}, "grad_lse");
    }
    auto whole = [&](const View& all, const char* name, int64_t heads, int64_t count, int64_t columns) {
      View v = c.at(all, item);
      expect_own(v, p, name, 3);
      Array to = operand(v, p, name, {heads, count, columns}, cells);
      expect(to, {p.query.type, real}, name);
      return to;
    };
    g.query = whole(c.own, "grad_query", p.H, p.T, p.D);
    g.key = whole(of_key, "grad_key", p.G, p.S, p.D);
    g.value = whole(of_value, "grad_value", p.G, p.S, p.V);
    if (of_bias.given) {
      View v = c.at(of_bias, item);
      g.bias = operand(v, p, "grad_bias", {p.H, p.T, p.S}, cells, true);
      expect(g.bias, {real}, "grad_bias");
      memset(v.memory, 0, v.count() * v.itemsize());  // which is added to
    }
    std::vector<double> sums(of_sinks.given ? p.H : 0);
    backward(p, g, of_sinks.given ? sums.data() : nullptr, never);
    if (!of_sinks.given) continue;
    Array to = operand(c.at(of_sinks, item), p, "grad_sinks", {p.H}, {&Array::head});
    expect(to, {real}, "grad_sinks");
    for (int64_t head = 0; head < p.H; ++head) write(to.data + head * to.head, real, sums[head]);
  }
}

xla::Error* error(const xla::Frame* frame, xla::Code code, const char* message) {
  xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, message, code};
  return frame->api->create_error(&arguments);
}

std::string sizes_of(const xla::Buffers& all) {
  std::string said;
  for (int64_t i = 0; i < all.count; ++i) {
    said += i ? ", (" : "(";
    for (int64_t axis = 0; axis < all.buffers[i]->rank; ++axis)
      said += (axis ? ", " : "") + std::to_string(all.buffers[i]->sizes[axis]);
    said += ")";
  }
  return said;
}

xla::Error* answer(xla::Frame* frame, void (*compute)(Call&)) {
  for (xla::Extension* e = frame->extensions; e; e = e->next)
    if (e->type == xla::metadata) {
      xla::Metadata* asked = reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
      asked->version.major = xla::major_version, asked->version.minor = xla::minor_version;
      asked->traits = 0;
      return nullptr;
    }
  if (frame->size < sizeof(xla::Frame)) return error(frame, xla::internal, "kernel: XLA's interface is too old");
  if (frame->stage != xla::execute) return nullptr;
  try {
    Call call(*frame);
    compute(call);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return error(frame, xla::resource_exhausted, "regard: no memory left");
  } catch (const std::exception& wrong) {
    std::string said = wrong.what();
    said += "\nReceived " + sizes_of(frame->arguments) + " for " + sizes_of(frame->results);
    return error(frame, xla::invalid_argument, said.c_str());
  }
}

}  // namespace

xla::Error* xla::forward(Frame* frame) { return answer(frame, forward_call); }
xla::Error* xla::backward(Frame* frame) { return answer(frame, backward_call); }

}  // namespace regard
