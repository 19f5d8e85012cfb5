#include "dispatch.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "pool.h"

namespace regard {

const Kernel* const* kernels(int* count) {
  static const Kernel* present[4];
  static int found = [] {
    int n = 0;
    present[n++] = &kernel_portable;
#if defined(__x86_64__)
    // Ask for everything that the object's flags let the compiler use.
    auto haswell = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                   __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    if (haswell) present[n++] = &kernel_avx2;
    if (haswell && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      present[n++] = &kernel_avx512;
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

struct Work {
  const Problem& problem;
  const Kernel& kernel;
  const Tile* tile;
  int64_t rows, chunk, chunks;  // rows of one item and key head, cut into chunks
  size_t bytes;
  bool (*poll)();
  std::atomic<int> flags{0};

  // The last rows first: under a causal rule they are the longest, and short ones fill the gaps at the end.
  Unit unit(int64_t index) const {
    int64_t pairs = problem.B * problem.G, pair = index % pairs, c = chunks - 1 - index / pairs;
    return {pair / problem.G, pair % problem.G, c * chunk, std::min(rows, (c + 1) * chunk)};
  }
  void run(int64_t index) {
    static thread_local Space space;
    char* workspace = space.of(bytes);
    int f = tile ? kernel.tile(problem, *tile, unit(index), workspace) : kernel.forward(problem, unit(index), workspace);
    if (f) flags |= f;
  }
};

int spread(const Problem& p, const Tile* tile, int64_t rows, double operations, bool (*poll)()) {
  if (!p.B || !p.H || !rows) return 0;
  Work work{p, kernel(), tile, rows, 0, 0, 0, poll};
  work.bytes = work.kernel.workspace(p);
  work.chunk = work.kernel.rows_per_unit(p);
  int use = operations < 2e6 ? 1 : threads();  // below that, waking a thread costs more than it saves
  while (use > 1 && work.chunk > work.kernel.panel(p) && p.B * p.G * ((rows + work.chunk - 1) / work.chunk) < 4 * use)
    work.chunk = std::max<int64_t>(work.kernel.panel(p), work.chunk / 2 / work.kernel.panel(p) * work.kernel.panel(p));
  work.chunks = (rows + work.chunk - 1) / work.chunk;
  bool whole = run_items(
      p.B * p.G * work.chunks, use, [](void* w, int64_t i) { static_cast<Work*>(w)->run(i); },
      [](void* w) { return static_cast<Work*>(w)->poll(); }, &work);
  return whole ? work.flags.load() : -1;
}

}  // namespace

int forward(const Problem& p, bool (*poll)()) {
  double pairs = double(p.B) * p.H * p.T * p.S;
  return spread(p, nullptr, p.H / p.G * p.T, pairs * (p.D + p.V), poll);
}

int tile(const Problem& p, const Tile& t, bool (*poll)()) {
  double pairs = double(p.B) * p.H * t.rows * t.keys;
  return spread(p, &t, p.H / p.G * t.rows, pairs * (p.D + 8), poll);
}

}  // namespace regard
