#include "dispatch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#if defined(REGARD_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "plain.h"
#include "pool.h"

namespace regard {

#if defined(REGARD_WIDE)
extern const Kernel kernel_wide, kernel_wide_bf16, kernel_wide_amx;  // only in builds for tests
#endif

#if defined(__x86_64__)
static bool converts_halves() {  // F16C, which Clang's __builtin_cpu_supports does not know
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

#if defined(REGARD_AMX)
// Whether there are matrix tiles for bfloat16, and Linux lets this process use them (it asks to be asked, once).
static bool matrix_tiles() {
  unsigned a, b, c, d = 0, low, high;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~d & (1u << 22 | 1u << 24)) return false;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned states = 3u << 17;
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (low & states) == states && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

const Kernel* const* kernels(int* count) {
  static const Kernel* present[8];
  static int found = [] {
    int n = 0;
    present[n++] = &kernel_portable;
#if defined(__x86_64__)
    // Ask for everything that the object's flags let the compiler use.
    auto haswell = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                   __builtin_cpu_supports("bmi2") && converts_halves();
#if defined(REGARD_WIDE)
    if (haswell) present[n++] = &kernel_wide, present[n++] = &kernel_wide_bf16, present[n++] = &kernel_wide_amx;
#endif
    if (haswell) present[n++] = &kernel_avx2;
    bool skylake = haswell && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (skylake) present[n++] = &kernel_avx512;
#if defined(REGARD_AVX512_BF16)
    if (skylake && __builtin_cpu_supports("avx512bf16")) present[n++] = &kernel_avx512_bf16;
#endif
#if defined(REGARD_AMX)
    if (skylake && matrix_tiles()) present[n++] = &kernel_amx;
#endif
#endif
    return n;
  }();
  *count = found;
  return present;
}

static std::atomic<const Kernel*> chosen{nullptr};

const Kernel& kernel() {
  if (const Kernel* k = chosen.load(std::memory_order_relaxed)) return *k;
  int count;
  const Kernel* const* present = kernels(&count);
  chosen = present[count - 1];
  return *chosen.load();
}

bool use_kernel(const char* name) {
  int count;
  const Kernel* const* present = kernels(&count);
  for (int i = 0; i < count; ++i)
    if (!strcmp(present[i]->name, name)) return chosen = present[i], true;
  return false;
}

static std::atomic<int> thread_count{1};
int threads() { return thread_count; }
void set_threads(int count) { thread_count = count; }

namespace {

// A thread's workspace, kept for its next unit.
struct Space {
  char* data = nullptr;
  size_t size = 0;
  ~Space() { free(data); }
  char* of(size_t bytes) {
    if (bytes > size) {
      free(data);
      size = (bytes + 4095) / 4096 * 4096;
      data = static_cast<char*>(aligned_alloc(4096, size));
      if (!data) size = 0, throw std::bad_alloc();
    }
    return data;
  }
};

char* workspace(size_t bytes) {
  static thread_local Space space;
  return space.of(bytes);
}

// Subnormal numbers count while this lives, whatever a library has told the caller's thread (PyTorch's set_flush_denormal, say): which
// thread computes a row must not show.
struct Subnormals {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  Subnormals() { _mm_setcsr(before & ~0x8040u); }
  ~Subnormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  Subnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    set(before & ~((uint64_t(1) << 24) | (uint64_t(1) << 19) | 1));  // FZ, FZ16, FIZ
  }
  ~Subnormals() { set(before); }
  static void set(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#else
  Subnormals() {}
#endif
};

// Runs work(i) for all i below count; false where poll() stopped it. An item that finds no memory, on whatever thread, ends the
// whole; the caller alone throws, once nobody is at work any more.
template <class Work>
bool spread(int64_t count, int threads, bool (*poll)(), const Work& work) {
  struct Context { const Work& work; bool (*poll)(); std::atomic<bool> no_memory{false}; } context{work, poll};
  bool whole = run_items(
      count, threads,
      [](void* c, int64_t i) {
        const Subnormals count;
        try {
          static_cast<Context*>(c)->work(i);
        } catch (const std::bad_alloc&) {
          static_cast<Context*>(c)->no_memory = true;
        }
      },
      [](void* c) { return static_cast<Context*>(c)->no_memory || static_cast<Context*>(c)->poll(); }, &context);
  if (context.no_memory) throw std::bad_alloc();
  return whole;
}

int threads_for(double operations) { return operations < 2e6 ? 1 : threads(); }  // below, waking one costs more than it saves

std::atomic<uint64_t> forwards{0}, backwards{0}, tiles{0};

// Rows of each item and key head in chunks of whole panels; the last rows first: under a causal rule they are the longest, and
// short ones fill the gaps at the end.
template <class Run>
int over_rows(const Problem& p, int64_t rows, double operations, size_t bytes, int64_t chunk, bool (*poll)(), const Run& run) {
  int64_t pairs = p.B * p.G, panel = kernel().panel(p);
  if (!pairs || !rows) return 0;
  int use = threads_for(operations);
  while (use > 1 && chunk > panel && pairs * ((rows + chunk - 1) / chunk) < 4 * use)
    chunk = std::max(panel, chunk / 2 / panel * panel);
  int64_t chunks = (rows + chunk - 1) / chunk;
  std::atomic<int> flags{0};
  bool whole = spread(pairs * chunks, use, poll, [&](int64_t index) {
    int64_t pair = index % pairs, c = chunks - 1 - index / pairs;
    int f = run(Unit{pair / p.G, pair % p.G, c * chunk, std::min(rows, (c + 1) * chunk)}, workspace(bytes));
    if (f) flags |= f;
  });
  return whole ? flags.load() : -1;
}

}  // namespace

Calls calls() { return {forwards, backwards, tiles}; }

// Output, lse, or both.
static int forward_once(const Problem& p, bool (*poll)()) {
  const Kernel& k = kernel();
  constexpr int64_t keys = 1024;  // of a part: whole blocks
  double operations = double(p.B) * p.H * p.T * p.S * (p.D + p.V);
  int64_t rows = p.H / p.G * p.T, pairs = p.B * p.G;
  size_t bytes = k.workspace(p);
  if (!k.few(p) || p.S < 2 * keys || !rows)
    return over_rows(p, rows, operations, bytes, k.rows_per_unit(p), poll,
                     [&](const Unit& unit, char* space) { return k.forward(p, unit, space); });
  int64_t parts = (p.S + keys - 1) / keys, state = k.state(p);
  std::unique_ptr<char[]> states(new char[pairs * parts * state]);
  std::atomic<int> flags{0};
  auto unit = [&](int64_t pair) { return Unit{pair / p.G, pair % p.G, 0, rows}; };
  bool whole = spread(pairs * parts, threads_for(operations), poll, [&](int64_t n) {
    int64_t first = n % parts * keys;
    flags |= k.part(p, unit(n / parts), first, std::min(p.S, first + keys), &states[n * state], workspace(bytes));
  });
  whole = whole && spread(pairs, 1, poll, [&](int64_t pair) {
    flags |= k.join(p, unit(pair), &states[pair * parts * state], parts, workspace(bytes));
  });
  return whole ? flags.load() : -1;
}

int forward(const Problem& p, bool (*poll)()) {
  ++forwards;
  if (!p.B || !p.G) return 0;
  if (!p.lse || !kernel().few(p)) return forward_once(p, poll);
  // A weight is the difference of a score and an lse, and goes right where both were rounded alike. So the lse is that of the scores
  // as looks and gradients multiply them, whichever rows they look at; the output's bits do not depend on whether somebody asked.
  Problem logs = p, output = p;
  logs.by_lane = true, logs.V = 0, output.lse = Array();
  int flags = forward_once(logs, poll), more = flags < 0 ? 0 : forward_once(output, poll);
  return flags < 0 || more < 0 ? -1 : flags | more;
}

int tile(const Problem& p, const Tile& t, bool (*poll)()) {
  ++tiles;
  if (!p.B || !p.G) return 0;
  const Kernel& k = kernel();
  double operations = double(p.B) * p.H * t.rows * t.keys * (p.D + 8);
  return over_rows(p, p.H / p.G * t.rows, operations, k.workspace(p), k.rows_per_unit(p), poll,
                   [&](const Unit& unit, char* space) { return k.tile(p, t, unit, space); });
}

// Where there are enough heads, each is one piece of work; where not, gradients of queries are cut by rows and those of keys by
// keys, at the price of rebuilding the weights twice. Either way every sum runs in the same order.
int backward(const Problem& p, const Gradients& g, double* sinks, bool (*poll)()) {
  ++backwards;
  const Backward& k = *kernel().backward;
  int64_t pairs = p.B * p.G;
  if (!pairs) return 0;
  int64_t rows = p.H / p.G * p.T;
  double operations = 2.5 * double(p.B) * p.H * p.T * p.S * (p.D + p.V);
  size_t bytes = k.workspace(p);
  int use = threads_for(operations);
  bool whole = true;
  if (use == 1 || pairs >= 3 * use) {
    Gradients both = g;
    both.bias = Array(), both.want_query = both.want_keys = true;
    whole = spread(pairs, use, poll, [&](int64_t pair) {
      k.part(p, both, Part{{pair / p.G, pair % p.G, 0, rows}, 0, p.S}, workspace(bytes));
    });
  } else {
    Gradients of_query = g, of_keys = g;
    of_query.bias = of_keys.bias = Array(), of_query.want_query = of_keys.want_keys = true;
    whole = over_rows(p, rows, operations, bytes, k.rows_per_unit(p), poll, [&](const Unit& unit, char* space) {
      k.part(p, of_query, Part{unit, 0, p.S}, space);
      return 0;
    }) == 0;
    int64_t chunk = std::max<int64_t>(64, (p.S * pairs / (8 * use) + 63) / 64 * 64), chunks = (p.S + chunk - 1) / chunk;
    whole = whole && spread(pairs * chunks, use, poll, [&](int64_t index) {
      int64_t pair = index % pairs, first = index / pairs * chunk;
      k.part(p, of_keys, Part{{pair / p.G, pair % p.G, 0, rows}, first, std::min(p.S, first + chunk)}, workspace(bytes));
    });
  }
  if (whole && g.bias) {  // cut by keys, so that sums over the axes along which a bias is shared have one owner
    int64_t chunk = g.bias.column ? std::max<int64_t>(64, (p.S / (4 * use) + 63) / 64 * 64) : std::max<int64_t>(p.S, 1);
    whole = spread((p.S + chunk - 1) / chunk, use, poll, [&](int64_t c) {
      for (int64_t pair = 0; pair < pairs; ++pair)
        k.part(p, g, Part{{pair / p.G, pair % p.G, 0, rows}, c * chunk, std::min(p.S, (c + 1) * chunk)}, workspace(bytes));
    });
  }
  if (whole && sinks)
    whole = spread(p.H, use, poll, [&](int64_t head) { sinks[head] = sink_gradient(p, g, head); });
  return whole ? 0 : -1;
}

// Rows of each item and head in up to four parts of 512 or more, the last first, so that one head has work for some threads. T
// and the cells of a map alone decide where they are cut: no cell has rows of two parts.
static int64_t parts_of(const Problem& p, const Map* map) {
  int64_t parts = std::clamp<int64_t>(p.T / 512, 1, 4);
  return map ? std::min(parts, map->rows) : parts;
}

template <class Run>
static int over_heads(const Problem& p, int64_t k, const Map* map, bool (*poll)(), const Run& run) {
  ++tiles;
  if (!p.B || !p.G) return 0;
  size_t bytes = kernel().looks->workspace(p, k);
  double operations = double(p.B) * p.H * p.T * p.S * (p.D + 16);
  int64_t parts = parts_of(p, map), heads = p.B * p.H;
  auto begin = [&](int64_t n) { return map ? n * map->rows / parts * p.T / map->rows : n * p.T / parts; };
  return spread(heads * parts, threads_for(operations), poll, [&](int64_t index) {
    int64_t pair = index % heads, n = parts - 1 - index / heads;
    run(HeadRows{pair / p.H, pair % p.H, begin(n), begin(n + 1)}, n, workspace(bytes));
  }) ? 0 : -1;
}

namespace {

// Zeros that go back to the system at once: from malloc and back, some MB for each layer of a model would leave holes between what stays.
struct Zeros {
  size_t bytes;
  double* numbers = nullptr;
  explicit Zeros(int64_t count) : bytes(size_t(count) * sizeof(double)) {
    if (!bytes) return;
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    numbers = static_cast<double*>(found);
  }
  Zeros(const Zeros&) = delete;
  ~Zeros() { if (numbers) munmap(numbers, bytes); }
};

// What the first part of a head adds to the sums themselves, the others to numbers of their own, which are added in order at the end.
struct Partial {
  const Problem& p;
  const Sums& whole;
  int64_t distances = p.T + p.S - 1, size = 2 * (p.S + distances) + 2;
  Zeros zeros;

  Partial(const Problem& p, const Sums& whole, int64_t parts) : p(p), whole(whole), zeros((parts - 1) * p.B * p.H * size) {}

  Sums of(const HeadRows& rows, int64_t part) const {
    if (part == 0) return whole;
    double* next = &zeros.numbers[((part - 1) * p.B * p.H + rows.item * p.H + rows.head) * size];
    auto take = [&](int64_t count) {
      Array array;
      memset(array.batch, 0, sizeof array.batch);
      array.data = reinterpret_cast<char*>(next), array.column = 8, next += count;
      return array;
    };
    Sums sums = whole;
    sums.received = take(p.S), sums.along = take(distances), sums.seen = take(p.S), sums.met = take(distances);
    if (whole.same) sums.same = take(2);
    return sums;
  }

  template <class Number>
  void add(const Array& to, const Array& from, const HeadRows& rows, int64_t count) const {
    Number* sum = head_of<Number>(to, p, rows.item, rows.head);
    const Number* more = head_of<Number>(from, p, rows.item, rows.head);
    for (int64_t n = 0; n < count; ++n) sum[n] += more[n];
  }

  void join(const HeadRows& rows, int64_t part) const {
    Sums own = of(rows, part);
    add<double>(whole.received, own.received, rows, p.S), add<double>(whole.along, own.along, rows, distances);
    add<int64_t>(whole.seen, own.seen, rows, p.S), add<int64_t>(whole.met, own.met, rows, distances);
    if (whole.same) add<double>(whole.same, own.same, rows, 2);
  }
};

}  // namespace

int sums(const Problem& p, const Sums& out, bool (*poll)()) {
  int64_t parts = parts_of(p, out.map);
  const Partial partial(p, out, parts);
  int stopped = over_heads(p, out.top ? out.top->k : 0, out.map, poll, [&](const HeadRows& rows, int64_t part, char* space) {
    kernel().looks->sums(p, partial.of(rows, part), rows, space);
  });
  for (int64_t pair = 0; !stopped && pair < p.B * p.H; ++pair)
    for (int64_t part = 1; part < parts; ++part) partial.join(HeadRows{pair / p.H, pair % p.H, 0, 0}, part);
  return stopped;
}

int top(const Problem& p, const Top& out, bool (*poll)()) {
  return over_heads(p, out.k, nullptr, poll,
                    [&](const HeadRows& rows, int64_t, char* space) { kernel().looks->top(p, out, rows, space); });
}

int map(const Problem& p, const Map& out, bool (*poll)()) {
  return over_heads(p, 0, &out, poll,
                    [&](const HeadRows& rows, int64_t, char* space) { kernel().looks->map(p, out, rows, space); });
}

}  // namespace regard
