#include "team.h"

#include <dlfcn.h>
#include <pthread.h>

#include <type_traits>

namespace regard {
namespace {

// A child of fork has the memory of the teams but none of their threads: work given to one would wait for ever.
bool forked = false;
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

// The OpenMP library that PyTorch is linked with, whatever others a program loads. Names are GCC's; LLVM's and Intel's know them.
struct OpenMP {
  void (*parallel)(void (*work)(void*), void* context, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
  int (*in_parallel)() = nullptr;

  OpenMP() {
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return;
    auto find = [&](auto& f, const char* name) { f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(torch, name)); };
    find(parallel, "GOMP_parallel"), find(max_threads, "omp_get_max_threads"), find(in_parallel, "omp_in_parallel");
  }
};

thread_local const OpenMP* joined = nullptr;

}  // namespace

void join_team() {
  if (joined) return;
  static const OpenMP openmp;
  if (openmp.parallel && openmp.max_threads && openmp.in_parallel) joined = &openmp;
}

bool on_team(int threads, void (*work)(void*), void* context) {
  if (!joined || forked || joined->in_parallel()) return false;
  if (int size = joined->max_threads(); size < 2 || size > threads) return false;
  joined->parallel(work, context, 0, 0);
  return true;
}

}  // namespace regard
