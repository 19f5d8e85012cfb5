// What an attention problem is, and what each instruction set must offer.
//
// A problem is pointers, sizes and strides (in bytes), checked before it gets here; nothing in it is expanded. The kernel
// never allocates, throws or starts a thread: dispatch.cpp cuts the work into units and hands each unit a workspace.
//
// Names: B batch items, H query heads, G key heads, T queries, S keys, D query width, V value width, as in the papers.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace regard {

enum Type : int { float32, float64, float16, bfloat16, boolean, int64 };

constexpr int most_batch_axes = 29;  // with head, row and column: rank 32

// One operand. An axis along which it does not change has stride 0.
struct Array {
  char* data = nullptr;
  Type type = float32;
  int64_t batch[most_batch_axes];
  int64_t head = 0, row = 0, column = 0;
  explicit operator bool() const { return data != nullptr; }
};

struct Problem {
  int batch_axes = 0;
  int64_t batch_size[most_batch_axes];
  int64_t B = 1, H = 1, G = 1, T = 0, S = 0, D = 0, V = 0;

  Array query, key, value, output, lse;

  double scale = 1, softcap = 0;      // softcap 0: none
  Array mask, bias;                   // (…, H, T, S), boolean and floating
  Array sinks;                        // (H,) float64: one logit a head that gives no value
  Array lower, upper, lengths;        // (…): row i sees i + lower <= j < i + upper, and j < lengths
  Array first, past;                  // (…, T): first <= j < past
  Array query_segments, key_segments; // (…, T), (…, S): equal numbers only
  int64_t row_offset = 0;             // the number of query's first row, for lower and upper

  double dropout = 0;
  uint64_t seed = 0;
  bool high = false;                  // a relative error of 2^-16 is good enough for float32
  bool by_lane = false;               // scores of few rows too are multiplied as those of many (tiles.h), for an lse that fits them
};

// Rows [begin, end) of one item and key head. The H / G query heads that share a key head are stacked:
// row r is query r % T of query head g * (H / G) + r / T.
struct Unit {
  int64_t item, key_head, begin, end;
};

// What `tile` is asked for.
enum What : int { scores, weights, allowed };

// Any rectangle of scores, weights or "may attend", rebuilt from query, key, lse and the rule.
struct Tile {
  What what;
  Array out;  // (…, H, rows, keys)
  int64_t row_begin, rows, key_begin, keys;
};

// What `backward` reads beside the problem (whose output and lse are the forward pass's), and what it writes.
struct Gradients {
  Array output, lse;               // of the loss by output, and by lse (may be absent)
  Array query, key, value;         // written; key and value have query's batch axes
  Array bias;                      // added to, in the bias's own broadcast shape; or absent
  bool want_query = false, want_keys = false;
};

// Query rows and keys that one piece of the backward pass looks at; it writes the gradients of one of the two, or both.
struct Part {
  Unit rows;
  int64_t key_begin, key_end;
};

// Rows [begin, end) of one item and query head.
struct HeadRows {
  int64_t item, head, begin, end;
};

// What all rows of each item and head give together, and how spread each row is: one pass over all weights, given lse. Sums and
// counts are float64 and int64; those of rows that are not `real` (padding) are left out everywhere but in `entropy`.
struct Sums {
  Array real;                      // boolean (…, T), or absent
  Array received, seen;            // (…, H, S), by key: weight, and how many rows may attend
  Array along, met;                // (…, H, T + S - 1), by key - row + T - 1
  Array entropy;                   // (…, H, T), in nats
  Array row_ids, key_ids, same;    // (…, T), (…, S), 0 or more, and (…, H, 2): weight on keys of the row's own id, and on keys behind one;
                                   // or absent
  const struct Top* top = nullptr; // the keys that have the most weight as well; or null
  const struct Map* map = nullptr; // all weights in cells as well; or null
};

// The keys of each row that have the most weight, or, where sums are given, the most beyond what other rows give.
struct Top {
  const Sums* beyond = nullptr;    // received, seen, along, met and real; null: by weight
  int64_t k = 0;
  Array weights, positions;        // (…, H, T, k); where a row has fewer keys: 0 and -1
};

// All weights in (rows, columns) cells: cell i begins at floor(i * size / cells).
struct Map {
  Array real;                      // as above
  Array total, largest, count;     // (…, H, rows, columns), float64 and int64, added to: sums, the largest; allowed pairs
  int64_t rows = 0, columns = 0;
};

constexpr int attends_bad_bias = 1;  // a row attends a bias that is +inf or NaN

// What one instruction set offers: its object defines this table and nothing else.
struct Kernel {
  const char* name;
  int64_t (*rows_per_unit)(const Problem&);       // as many rows as share a pass over the keys
  int64_t (*panel)(const Problem&);               // rows that are computed together; units are made of whole panels
  size_t (*workspace)(const Problem&);            // bytes that a unit needs, 64-byte aligned
  int (*forward)(const Problem&, const Unit&, char* workspace);
  int (*tile)(const Problem&, const Tile&, const Unit&, char* workspace);
  // Few rows on many keys are cut by keys too, at places that S alone decides: `part` leaves what it saw of keys
  // [begin, end) in `state`, and `join` puts the parts of a unit together in order.
  bool (*few)(const Problem&);                    // whether a key head's rows are so few
  size_t (*state)(const Problem&);                // bytes
  int (*part)(const Problem&, const Unit&, int64_t begin, int64_t end, char* state, char* workspace);
  int (*join)(const Problem&, const Unit&, char* states, int64_t count, char* workspace);
  const struct Backward* backward;
  const struct Looks* looks;
};

// The same for gradients.
struct Backward {
  int64_t (*rows_per_unit)(const Problem&);
  size_t (*workspace)(const Problem&);
  void (*part)(const Problem&, const Gradients&, const Part&, char* workspace);
};

// And for looks; some rows of one item and head at a time.
struct Looks {
  size_t (*workspace)(const Problem&, int64_t k);
  void (*sums)(const Problem&, const Sums&, const HeadRows&, char* workspace);
  void (*top)(const Problem&, const Top&, const HeadRows&, char* workspace);
  void (*map)(const Problem&, const Map&, const HeadRows&, char* workspace);
};

extern const Kernel kernel_portable;
extern const Backward backward_portable;
extern const Looks looks_portable;
#if defined(__x86_64__)
extern const Kernel kernel_avx2, kernel_avx512, kernel_avx512_bf16, kernel_amx;
extern const Backward backward_avx2, backward_avx512, backward_avx512_bf16, backward_amx;
extern const Looks looks_avx2, looks_avx512, looks_avx512_bf16, looks_amx;
#endif

static inline const char* at_item(const Array& array, const Problem& p, int64_t item) {
  const char* data = array.data;
  for (int axis = p.batch_axes - 1; item && axis >= 0; --axis) {  // item 0 begins where the array does
    data += (item % p.batch_size[axis]) * array.batch[axis];
    item /= p.batch_size[axis];
  }
  return data;
}

// One head's numbers, where they lie side by side.
template <class Number>
static inline Number* head_of(const Array& array, const Problem& p, int64_t item, int64_t head) {
  return reinterpret_cast<Number*>(const_cast<char*>(at_item(array, p, item)) + head * array.head);
}

}  // namespace regard
