// Reading and writing numbers: half types by their bits, any type as double, and the counter-based random numbers of dropout.
// Everything is static: each instruction set's object keeps its own copy (see attention.cpp).
#pragma once
#include <stdint.h>
#include <string.h>

#include "attention.h"

namespace regard {

template <class To, class From>
static inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

static inline float from_bfloat16(uint16_t half) { return bit_cast<float>(uint32_t(half) << 16); }

// Round to nearest, ties to even; a NaN stays one.
static inline uint16_t to_bfloat16(float x) {
  uint32_t bits = bit_cast<uint32_t>(x);
  if (x != x) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The exponent's bias differs by 112; multiplying by 2**112 mends it and normalises subnormals at once.
static inline float from_float16(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = uint32_t(half & 0x7fff) << 13;
  float scaled = bit_cast<float>(magnitude) * 0x1p112f;
  uint32_t bits = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : bit_cast<uint32_t>(scaled);
  return bit_cast<float>(bits | sign);
}

static inline uint16_t to_float16(float x) {
  uint32_t bits = bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 0x1ff));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                                  // subnormal: let an addition round
    float rounded = bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

// Halves as they lie in memory.
struct Bfloat16 {
  uint16_t bits;
  explicit operator float() const { return from_bfloat16(bits); }
};
struct Float16 {
  uint16_t bits;
  explicit operator float() const { return from_float16(bits); }
};

static inline double read(const char* from, Type type) {
  switch (type) {
    case float32: { float x; memcpy(&x, from, 4); return x; }
    case float64: { double x; memcpy(&x, from, 8); return x; }
    case float16: { uint16_t x; memcpy(&x, from, 2); return from_float16(x); }
    case bfloat16: { uint16_t x; memcpy(&x, from, 2); return from_bfloat16(x); }
    default: return *from != 0;
  }
}

static inline void write(char* to, Type type, double value) {
  switch (type) {
    case float32: { float x = float(value); memcpy(to, &x, 4); break; }
    case float64: memcpy(to, &value, 8); break;
    case float16: { uint16_t x = to_float16(float(value)); memcpy(to, &x, 2); break; }
    case bfloat16: { uint16_t x = to_bfloat16(float(value)); memcpy(to, &x, 2); break; }
    default: *to = value != 0;
  }
}

// Reads `count` numbers of any type, `stride` bytes apart.
template <class F>
static void read_numbers(const char* from, Type type, int64_t stride, int64_t count, F* to) {
  if (type == float32 && stride == 4)
    for (int64_t i = 0; i < count; ++i) { float x; memcpy(&x, from + 4 * i, 4); to[i] = x; }
  else if (type == bfloat16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x; memcpy(&x, from + 2 * i, 2); to[i] = from_bfloat16(x); }
  else if (type == float16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x; memcpy(&x, from + 2 * i, 2); to[i] = from_float16(x); }
  else
    for (int64_t i = 0; i < count; ++i) to[i] = F(read(from + i * stride, type));
}

// Writes `count` numbers as any type, `stride` bytes apart.
template <class F>
static void write_numbers(const F* from, int64_t count, char* to, Type type, int64_t stride) {
  if (type == float32 && stride == 4)
    for (int64_t i = 0; i < count; ++i) { float x = float(from[i]); memcpy(to + 4 * i, &x, 4); }
  else if (type == bfloat16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x = to_bfloat16(float(from[i])); memcpy(to + 2 * i, &x, 2); }
  else if (type == float16 && stride == 2)
    for (int64_t i = 0; i < count; ++i) { uint16_t x = to_float16(float(from[i])); memcpy(to + 2 * i, &x, 2); }
  else
    for (int64_t i = 0; i < count; ++i) write(to + i * stride, type, from[i]);
}

static inline int64_t read_int(const char* from) { int64_t x; memcpy(&x, from, 8); return x; }

// Philox4x32-10, first word (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
static inline uint32_t philox(uint64_t seed, uint32_t item, uint32_t head, uint32_t row, uint32_t key) {
  uint32_t c0 = item, c1 = head, c2 = row, c3 = key, k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
  }
  return c0;
}

// Whether dropout keeps a weight: word / 2**32 >= p.
static inline bool keeps(const Problem& p, int64_t item, int64_t head, int64_t row, int64_t key) {
  return philox(p.seed, uint32_t(item), uint32_t(head), uint32_t(row), uint32_t(key)) >= p.dropout * 0x1p32;
}

}  // namespace regard
