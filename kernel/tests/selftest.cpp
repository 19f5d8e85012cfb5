// The kernel's self-test, a program without Python: it also runs on an emulated processor, and whole under the sanitizers.
//
//   selftest [problems] [seed]        exits non-zero at the first fault
#include <atomic>
#include <chrono>
#include <thread>

#include "pool.h"
#include "reference.h"

using namespace regard;

// Random problems, each on every kernel that this processor can run.
static bool problems(int count, uint64_t seed) {
  for (int i = 0; i < count; ++i) {
    Source source{nullptr, 0, seed + i};
    if (!try_problem(source, i % 8 ? 3e5 : 6e6, i % 4 == 3)) return fprintf(stderr, "with seed %d\n", int(seed + i)), false;
  }
  return true;
}

// Many callers at once, with more threads than cores: the same bits as alone, and nobody waits for ever.
static bool callers(int count, uint64_t seed) {
  std::atomic<bool> good{true};
  std::vector<std::thread> all;
  set_threads(3);
  for (int c = 0; c < 4; ++c)
    all.emplace_back([&, c] {
      for (int i = 0; good && i < count; ++i) {
        Source source{nullptr, 0, seed + c * 1000 + i % 10};
        Whole whole = make_problem(source, 2e7, false);
        auto run = [&] {
          forward(whole.p, never);
          return std::vector<char>(whole.output->memory.get(), whole.output->memory.get() + whole.output->bytes);
        };
        auto first = run();
        if (first != run()) good = false;
      }
    });
  for (auto& thread : all) thread.join();
  if (!good) fprintf(stderr, "callers at the same time: other bits\n");
  return good;
}

// The pool alone: every item of every job is done once, or, after a stop, at most once.
static bool jobs(int count) {
  struct Job {
    std::vector<std::atomic<int>> done = std::vector<std::atomic<int>>(40);
    std::atomic<int> finished{0}, stop_after{0};
  };
  std::atomic<bool> good{true};
  std::vector<std::thread> all;
  for (int c = 0; c < 3; ++c)
    all.emplace_back([&, c] {
      Source source{nullptr, 0, uint64_t(c)};
      for (int i = 0; good && i < count; ++i) {
        Job job;
        int64_t items = 1 + source.below(40);
        job.stop_after = source.chance(4) ? int(source.below(items)) : 1000;
        if (source.chance(50)) std::this_thread::sleep_for(std::chrono::microseconds(source.below(2000)));  // workers fall asleep
        bool whole = run_items(
            items, 1 + int(source.below(7)),
            [](void* context, int64_t item) {
              Job& job = *static_cast<Job*>(context);
              for (int n = 0; n < int(item % 7) * 50; ++n) asm volatile("");
              ++job.done[item], ++job.finished;
            },
            [](void* context) { return static_cast<Job*>(context)->finished > static_cast<Job*>(context)->stop_after; }, &job);
        for (int64_t item = 0; item < 40; ++item) {
          int done = job.done[item];
          if (done > 1 || (done && item >= items) || (whole && !done && item < items)) good = false;
        }
      }
    });
  for (auto& thread : all) thread.join();
  if (!good) fprintf(stderr, "the pool: an item was done twice, or not at all\n");
  return good;
}

int main(int count, char** words) {
  int n = count > 1 ? atoi(words[1]) : 400;
  uint64_t seed = count > 2 ? strtoull(words[2], nullptr, 10) : 1;
  int kinds;
  const Kernel* const* all = kernels(&kinds);
  bool good = problems(n, seed) && callers(n / 4, seed) && jobs(n * 100);
  printf("%d problems on plain", n);
  for (int i = 0; i < kinds; ++i) printf(", %s", all[i]->name);
  printf(": %s\n", good ? "good" : "FAULTY");
  return !good;
}
