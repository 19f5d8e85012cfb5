// Random attention problems for selftest.cpp and fuzz.cpp: any shape, type, stride, rule and content, each operand in memory
// of exactly its own extent, so that a sanitizer sees the first byte read outside.
#pragma once
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "numbers.h"

namespace regard {

// Choices come from given bytes while there are any, so that a fuzzer can learn them; then from a generator they have seeded.
struct Source {
  const uint8_t* bytes = nullptr;
  size_t left = 0;
  uint64_t state = 0;

  uint32_t next() {  // splitmix64 (Steele et al. 2014)
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return uint32_t((z ^ (z >> 31)) >> 32);
  }
  int64_t below(int64_t n) {
    if (!left) return next() % n;
    --left;
    state = state * 31 + *bytes;
    return n <= 256 ? *bytes++ % n : (*bytes++ * 257 + next() % 257) % n;
  }
  bool chance(int one_in) { return below(one_in) == 0; }
  double uniform() { return next() * 0x1p-32; }
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508; }
  template <class X>
  X pick(std::initializer_list<X> from) { return from.begin()[below(int64_t(from.size()))]; }
};

inline int64_t size_of(Type type) { return type == float32 ? 4 : type == float64 || type == int64 ? 8 : type == boolean ? 1 : 2; }

// One operand's memory: where its elements lie, and exactly as many bytes.
struct Store {
  std::vector<int64_t> sizes, strides;
  int64_t item = 1, before = 0, bytes = 0;
  std::unique_ptr<char, void (*)(void*)> memory{nullptr, free};

  char* origin() { return memory.get() + before; }
  void each(const std::function<void(char*)>& visit) {
    std::vector<int64_t> index(sizes.size(), 0);
    for (int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<>()); n > 0; --n) {
      char* at = origin();
      for (size_t a = 0; a < sizes.size(); ++a) at += index[a] * strides[a];
      visit(at);
      for (size_t a = sizes.size(); a-- > 0 && ++index[a] == sizes[a];) index[a] = 0;
    }
  }
};

// How wild an operand's contents are.
enum Content { tame, loud, wild };

inline double number(Source& source, Content content) {
  if (content == wild && source.next() % 8 == 0) {
    static const double strange[] = {INFINITY, -INFINITY, NAN, 3.4028234663852886e38, -3.4028234663852886e38, 1e-40,
                                     65504, -65504, 1e300, -1e300, 0, -0.0, 1e19, -1e19, 5e-324, 1};
    return strange[source.next() % 16];
  }
  return source.normal() * (content == loud ? 30 : 1);
}

// Memory for an array of these sizes in some order of axes, with gaps, turned or not, unless `dense`; where `repeat`, some axes do
// not move. The elements are filled; gaps are left as `fill`.
inline std::shared_ptr<Store> make_store(Source& source, std::vector<int64_t> sizes, Type type, bool repeat,
                                         const std::function<double()>& content, bool dense = false, int fill = 0xA5) {
  auto store = std::make_shared<Store>();
  store->sizes = sizes, store->item = size_of(type);
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  bool simple = source.chance(2) || dense;
  for (size_t i = order.size(); !simple && i > 1; --i) std::swap(order[i - 1], order[source.below(int64_t(i))]);
  store->strides.assign(sizes.size(), 0);
  int64_t stride = store->item, past = store->item;
  for (size_t i = order.size(); i-- > 0;) {
    size_t axis = order[i];
    if (repeat && !simple && source.chance(4)) continue;
    int64_t gap = simple ? 1 : source.pick({1, 1, 2, 3});
    bool turned = !simple && source.chance(4);
    store->strides[axis] = (turned ? -1 : 1) * stride * gap;
    int64_t length = std::max<int64_t>(sizes[axis], 1), reach = (length - 1) * stride * gap;
    if (turned) store->before += reach;
    past += reach;
    stride *= gap * length;
  }
  bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  store->bytes = empty ? 1 : past;
  if (empty) store->before = 0;
  store->memory.reset(static_cast<char*>(malloc(store->bytes)));
  memset(store->memory.get(), fill, store->bytes);
  store->each([&](char* at) {
    double x = content ? content() : 0;
    if (type == int64) { int64_t n = int64_t(x); memcpy(at, &n, 8); }
    else if (type == boolean) *at = char(x);
    else write(at, type, x);
  });
  return store;
}

// A problem with all that its pointers point to.
struct Whole {
  Problem p;
  std::vector<std::shared_ptr<Store>> stores;
  std::shared_ptr<Store> output, lse;

  // An operand of these sizes behind the batch axes; `roles` names their strides.
  std::shared_ptr<Store> give(Source& source, Array& to, Type type, std::vector<int64_t> sizes,
                              std::vector<int64_t Array::*> roles, bool repeat, const std::function<double()>& content,
                              bool batch = true, bool dense = false) {
    std::vector<int64_t> all;
    if (batch) all.assign(p.batch_size, p.batch_size + p.batch_axes);
    size_t axes = all.size();
    all.insert(all.end(), sizes.begin(), sizes.end());
    auto store = make_store(source, all, type, repeat, content, dense);
    to = Array();
    to.data = store->origin(), to.type = type;
    for (int a = 0; a < p.batch_axes; ++a) to.batch[a] = batch ? store->strides[a] : 0;
    for (size_t r = 0; r < roles.size(); ++r) to.*roles[r] = store->strides[axes + r];
    stores.push_back(store);
    return store;
  }
};

inline int64_t a_size(Source& source, int64_t most) {
  switch (source.below(4)) {
    case 0: return source.below(4);
    case 1: return std::min(most, source.pick<int64_t>({8, 16, 17, 31, 32, 48, 63, 64, 65, 96, 128}));
    default: return source.below(most + 1);
  }
}

// `most` bounds the work: multiplications of the whole problem.
inline Whole make_problem(Source& source, double most, bool may_be_wild) {
  Whole whole;
  Problem& p = whole.p;
  Type type = source.pick({float32, float32, float64, float16, bfloat16});
  p.batch_axes = int(source.below(3));
  for (int a = 0; a < p.batch_axes; ++a) p.B *= p.batch_size[a] = source.chance(16) ? 0 : 1 + source.below(3);
  p.G = source.chance(32) ? 0 : 1 + source.below(3);
  p.H = p.G * (1 + source.below(3));
  p.T = a_size(source, 210), p.S = a_size(source, 210), p.D = 1 + a_size(source, 100), p.V = a_size(source, 100);
  if (source.chance(16)) p.T = 192 + source.below(40), p.S = 192 + source.below(40), p.D = 16 + source.below(8), p.V = 16 + source.below(8);
  if (source.chance(12)) p.T = 1, p.S = 2048 + a_size(source, 1200), p.D = 1 + a_size(source, 40);  // keys cut into parts
  if (source.chance(24)) p.T = 1024 + a_size(source, 1200), p.S = 1 + a_size(source, 40);  // rows cut into parts, for sums
  while (double(p.B) * p.H * p.T * p.S * (p.D + p.V) > most) (p.T > p.S ? p.T : p.S) /= 2;

  auto content = [&] { return may_be_wild ? source.pick({tame, tame, loud, wild}) : source.pick({tame, tame, loud}); };
  auto numbers = [&](Content c) { return [&source, c] { return number(source, c); }; };
  auto whole_numbers = [&](int64_t low, int64_t high) {
    return [&source, low, high] { return double(low + int64_t(source.next() % uint64_t(high - low + 1))); };
  };
  int64_t Array::*head = &Array::head, Array::*row = &Array::row, Array::*column = &Array::column;
  whole.give(source, p.query, type, {p.H, p.T, p.D}, {head, row, column}, true, numbers(content()));
  whole.give(source, p.key, type, {p.G, p.S, p.D}, {head, row, column}, true, numbers(content()));
  whole.give(source, p.value, type, {p.G, p.S, p.V}, {head, row, column}, true, numbers(content()));
  whole.output = whole.give(source, p.output, type, {p.H, p.T, p.V}, {head, row, column}, false, nullptr);
  if (!source.chance(8))
    whole.lse = whole.give(source, p.lse, type == float64 || source.chance(2) ? float64 : float32, {p.H, p.T}, {head, row}, false, nullptr);

  p.scale = 1 / sqrt(double(p.D));
  if (source.chance(3)) p.scale = source.pick({1.0, 0.0, -0.3, 0.01, 1e-33, -1e-42});
  if (source.chance(4)) p.softcap = source.pick({1.0, 0.1, 30.0, 1e6});
  if (source.chance(4)) {
    int one_in = source.pick({2, 2, 8, 100});
    bool dense = source.chance(2);
    whole.give(source, p.mask, boolean, {p.H, p.T, p.S}, {head, row, column}, true, [&source, one_in, dense] {
      bool hit = source.next() % one_in == 0;
      return hit == dense ? 0 : source.next() % 16 == 0 ? 2 : 1;
    });
  }
  if (source.chance(4)) {
    Content c = content();
    whole.give(source, p.bias, source.pick({float32, float64, float16, bfloat16}), {p.H, p.T, p.S}, {head, row, column}, true,
               [&source, c] { return source.next() % 5 == 0 ? -INFINITY : number(source, c); });
  }
  if (source.chance(5)) whole.give(source, p.sinks, float64, {p.H}, {head}, true, numbers(content()), false);
  int64_t far = source.chance(8) ? int64_t(1) << 40 : 1;
  if (source.chance(3)) whole.give(source, p.lower, int64, {}, {}, true, whole_numbers(-p.T - far, p.S / 2 + far));
  if (source.chance(3)) whole.give(source, p.upper, int64, {}, {}, true, whole_numbers(-p.T / 2 - far, p.S + far));
  if (source.chance(5)) whole.give(source, p.lengths, int64, {}, {}, true, whole_numbers(0, p.S));
  if (source.chance(6)) whole.give(source, p.first, int64, {p.T}, {row}, true, whole_numbers(0, p.S));
  if (source.chance(6)) whole.give(source, p.past, int64, {p.T}, {row}, true, whole_numbers(0, p.S));
  if (source.chance(6)) {
    int64_t segments = source.pick({1, 2, 5});
    whole.give(source, p.query_segments, int64, {p.T}, {row}, true, whole_numbers(0, segments));
    whole.give(source, p.key_segments, int64, {p.S}, {column}, true, whole_numbers(0, segments));
  }
  p.high = source.chance(8);
  if (source.chance(6)) p.dropout = source.pick({0.1, 0.5, 0.9}), p.seed = source.next() * uint64_t(0x100000001);
  return whole;
}

}  // namespace regard
