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

// The biases of one row for a block's keys, into one lane of the panel. Clears the bits of keys that -inf excludes; sets `bad`
// where one that is +inf or NaN is attended. A finite number stays finite: one beyond the type's range is its last.
template <class F, class B>
inline uint64_t bias_lane(const char* bias, int64_t stride, uint64_t word, int count, F* lane, bool& bad, double (*as)(B)) {
  for (int j = 0; j < count; ++j) {
    B stored;
    memcpy(&stored, bias + j * stride, sizeof stored);
    double exact = as(stored);
    F x = F(exact);
    if (!(exact - exact == 0)) {
      if (exact == -INFINITY) word &= ~(uint64_t(1) << j);
      else bad |= (word >> j) & 1;
    } else if (!(x - x == 0)) {
      x = F(exact < 0 ? -3.4028234663852886e38 : 3.4028234663852886e38);
    }
    lane[j * width<F>] = x;
  }
  return word;
}

template <class F>
uint64_t bias_lane(const Problem& p, const char* bias, uint64_t word, int count, F* lane, bool& bad) {
  int64_t stride = p.bias.column;
  switch (p.bias.type) {
    case float64: return bias_lane<F, double>(bias, stride, word, count, lane, bad, [](double x) { return x; });
    case float16: return bias_lane<F, uint16_t>(bias, stride, word, count, lane, bad, [](uint16_t x) { return double(from_float16(x)); });
    case bfloat16: return bias_lane<F, uint16_t>(bias, stride, word, count, lane, bad, [](uint16_t x) { return double(from_bfloat16(x)); });
    default: return bias_lane<F, float>(bias, stride, word, count, lane, bad, [](float x) { return double(x); });
  }
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

// The biases of a panel's rows for a block's keys, by lane; clears bits as above. Most biases are numbers of F in a row, and
// finite: those need no second look.
template <class F>
void find_biases(const Problem& p, const Row* rows, int count, int64_t begin, int keys, Words<F>& words, F* bias, bool& bad) {
  constexpr int N = Lanes<F>::N;
  const char* from[width<F>] = {};
  for (int i = 0; i < count; ++i) {
    from[i] = rows[i].bias + begin * p.bias.column;
    for (int j = block; j < 2 * block; j += 16) __builtin_prefetch(from[i] + j * p.bias.column);
  }
  F strange[width<F>];
  bool simple = in_place<F>(p.bias, from[0]) && keys % N == 0;
  if (simple) {
    squares<F>(from, count, keys, F(1), bias);
    Vector<F> zeros[3] = {};
    for (int j = 0; j < keys; ++j)
      for (int v = 0; v < 3; ++v) zeros[v] += load(bias + j * width<F> + v * N) * splat(F(0));
    for (int v = 0; v < 3; ++v) store(strange + v * N, zeros[v]);
  }
  for (int i = 0; i < count; ++i)
    if (words.row[i] && !(simple && strange[i] == 0)) words.row[i] = bias_lane(p, from[i], words.row[i], keys, bias + i, bad);
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
