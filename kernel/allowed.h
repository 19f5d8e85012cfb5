// Who may attend, a block of 64 keys at a time: one bit a key in one word a row. Ranges, masks, segments and infinite biases all
// end in these words; a block that nobody may attend is skipped, one that all may attend costs nothing.
#pragma once
#include "rule.h"
#include "tiles.h"

namespace regard {
namespace {

// Whether rows of `a` are rows of F as they lie.
template <class F>
bool in_place(const Array& a, const char* rows) {
  constexpr Type own = sizeof(F) == 4 ? float32 : float64;
  return a.type == own && a.column == int64_t(sizeof(F)) && (uintptr_t(rows) | uintptr_t(a.row) | uintptr_t(a.head)) % sizeof(F) == 0;
}

inline uint64_t range_word(int64_t begin, int64_t end) {  // relative to the block
  begin = begin < 0 ? 0 : begin;
  end = end > 64 ? 64 : end;
  return begin < end ? (~uint64_t(0) >> (64 - (end - begin))) << begin : 0;
}

inline uint64_t mask_word(const char* mask, int64_t stride, int count) {
  uint64_t word = 0;
  if (stride == 0) return *mask ? ~uint64_t(0) : 0;
  if (stride != 1) {
    for (int j = 0; j < count; ++j) word |= uint64_t(mask[j * stride] != 0) << j;
    return word;
  }
  int j = 0;
#if defined(__AVX2__)
  for (; j + 32 <= count; j += 32) {
    __m256i none = _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask + j)), _mm256_setzero_si256());
    word |= uint64_t(~uint32_t(_mm256_movemask_epi8(none))) << j;
  }
#endif
  for (; j + 8 <= count; j += 8) {  // eight bytes to eight bits: gather their lowest bits by one product
    uint64_t bytes;
    memcpy(&bytes, mask + j, 8);
    bytes = ((((bytes & 0x7f7f7f7f7f7f7f7f) + 0x7f7f7f7f7f7f7f7f) | bytes) >> 7) & 0x0101010101010101;
    word |= ((bytes * 0x0102040810204080) >> 56) << j;
  }
  for (; j < count; ++j) word |= uint64_t(mask[j] != 0) << j;
  return word;
}

inline uint64_t segment_word(const char* segments, int64_t stride, int64_t segment, int count) {
  uint64_t word = 0;
  for (int j = 0; j < count; ++j) word |= uint64_t(read_int(segments + j * stride) == segment) << j;
  return word;
}

// What one panel's rows may attend of one block.
template <class F>
struct Words {
  uint64_t row[width<F>];
  // The same bits by lane: the sign bit of `bits << (last - j)` says whether key j is allowed.
  typename Lanes<F>::Bits bits[sizeof(F) == 4 ? 2 : 1][width<F>];
  uint64_t any;
  bool all;

  void set(int rows) {
    any = 0, all = true;
    for (int i = 0; i < width<F>; ++i) {
      if (i >= rows) row[i] = 0;
      any |= row[i];
      if (i < rows) all &= row[i] == ~uint64_t(0);
      if constexpr (sizeof(F) == 4) bits[0][i] = int32_t(row[i]), bits[1][i] = int32_t(row[i] >> 32);
      else bits[0][i] = int64_t(row[i]);
    }
  }
};

template <class F>
inline Integers<F> may_attend(const Words<F>& words, int key, int vector) {
  constexpr int size = 8 * sizeof(F);
  Integers<F> bits;
  memcpy(&bits, words.bits[key / size] + vector * Lanes<F>::N, sizeof bits);
  return (bits << (size - 1 - key % size)) < 0;
}

// One row's biases for a block's keys. A finite number stays finite: one beyond the type's range is its last.
template <class F>
void read_biases(const Array& a, const char* from, int keys, F* to) {
  read_numbers(from, a.type, a.column, keys, to);
  for (int j = 0; sizeof(F) == 4 && a.type == float64 && j < keys; ++j) {
    const double exact = read(from + j * a.column, float64);
    if (exact - exact == 0 && to[j] - to[j] != 0) to[j] = F(exact < 0 ? -3.4028234663852886e38 : 3.4028234663852886e38);
  }
}

// Clears the bits of keys that -inf excludes; sets `bad` where +inf or NaN is attended.
template <class F>
[[gnu::noinline]] void exclude(const F* bias, int count, int keys, Words<F>& words, bool& bad) {
  using I = Integers<F>;
  using Bits = typename Lanes<F>::Bits;
  constexpr int N = Lanes<F>::N, size = 8 * sizeof(F);
  for (int first = 0; first < keys; first += size)
    for (int v = 0; v * N < count; ++v) {
      I never = {}, strange = {};
      for (int j = 0; j < size && first + j < keys; ++j) {
        const Vector<F> x = load(bias + (first + j) * width<F> + v * N);
        const I bit = I{} + Bits(uint64_t(1) << j);
        never |= (x == splat(F(-INFINITY))) & bit, strange |= (x - x != splat(F(0))) & bit;
      }
      for (int i = 0; i < N && v * N + i < count; ++i) {
        uint64_t& word = words.row[v * N + i];
        const uint64_t mask = ~uint64_t(0) >> (64 - size);
        word &= ~((uint64_t(never[i]) & mask) << first);
        bad |= (word & (uint64_t(strange[i]) & mask) << first) != 0;
      }
    }
}

// The biases of a panel's rows for a block's keys, by lane.
template <class F>
void find_biases(const Problem& p, const Row* rows, int count, int64_t begin, int keys, Words<F>& words, F* bias, bool& bad) {
  constexpr int N = Lanes<F>::N;
  const int columns = (keys + N - 1) / N * N;
  const bool simple = in_place<F>(p.bias, rows[0].bias) && keys == columns;
  const char* from[width<F>] = {};
  F copy[width<F> * block];
  for (int i = 0; i < count; ++i) {
    from[i] = rows[i].bias + begin * p.bias.column;
    for (int j = block; j < 2 * block; j += 16) __builtin_prefetch(from[i] + j * p.bias.column);
    if (simple) continue;
    if (i > 0 && rows[i].bias == rows[i - 1].bias) {
      from[i] = from[i - 1];
      continue;
    }
    F* to = copy + i * block;
    read_biases(p.bias, from[i], keys, to);
    for (int j = keys; j < columns; ++j) to[j] = 0;
    from[i] = reinterpret_cast<const char*>(to);
  }
  squares<F>(from, count, columns, F(1), bias);
  Vector<F> zeros[3] = {};  // 0 where all are finite, as most are
  for (int j = 0; j < keys; ++j)
    for (int v = 0; v < 3; ++v) zeros[v] += load(bias + j * width<F> + v * N) * splat(F(0));
  for (int v = 0; v < 3; ++v) {
    if (!any(zeros[v] != splat(F(0)))) continue;
    return exclude(bias, count, keys, words, bad);
  }
}

// The words of a panel's rows for the block that begins at key `begin`; the panel's biases go to `bias`. Returns flags.
// Rows that share a mask or segment (as all queries of a padding mask do) share the work.
template <class F>
[[gnu::noinline]] int find_words(const Problem& p, const Row* rows, int count, int64_t begin, Words<F>& words, F* bias) {
  int keys = p.S - begin < block ? int(p.S - begin) : block;
  bool bad = false;
  const char *last_mask = nullptr, *last_segments = nullptr;
  int64_t last_segment = 0;
  uint64_t masked = 0, same = 0;
  for (int i = 0; i < count; ++i) {
    const Row& row = rows[i];
    uint64_t word = range_word(row.begin - begin, row.end - begin);
    if (word && row.mask) {
      const char* mask = row.mask + begin * p.mask.column;
      if (mask != last_mask) masked = mask_word(last_mask = mask, p.mask.column, keys);
      __builtin_prefetch(mask + block * p.mask.column);  // the row's next piece: rows lie too far apart to be foreseen
      word &= masked;
    }
    if (word && row.key_segments) {
      const char* segments = row.key_segments + begin * p.key_segments.column;
      if (segments != last_segments || row.segment != last_segment)
        same = segment_word(last_segments = segments, p.key_segments.column, last_segment = row.segment, keys);
      word &= same;
    }
    words.row[i] = word;
  }
  if (p.bias) find_biases(p, rows, count, begin, keys, words, bias, bad);
  words.set(count);
  return bad ? attends_bad_bias : 0;
}

}  // namespace
}  // namespace regard
