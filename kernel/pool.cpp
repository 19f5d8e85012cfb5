#include "pool.h"

#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace regard {
namespace {

using Item = void (*)(void*, int64_t);

constexpr int64_t most_items = 0x7fffffff;  // half a ticket's counter: claims past the end never wrap it

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins for about 0.2 ms, which is how soon a model's next call comes; then the caller sleeps.
template <class Condition>
bool spin_until(Condition condition) {
  auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

// Linux may run a worker that it wakes on the caller's own core, by turns with the caller, and see only milliseconds later that
// another core is idle. So the caller sends who is found there, or has not come at all, off its core. Once such a worker runs
// elsewhere it is as free as before.
struct Worker {
  std::atomic<uint32_t> came{0};  // the generation that it has taken up
#if defined(__linux__)
  pthread_t thread{};
  cpu_set_t cores;              // where it may run, kept while it was sent away
  std::atomic<bool> sent{false};
  std::atomic<int> core{-1};    // where it last was

  void report(uint32_t generation) {
    core = sched_getcpu();
    came = generation;
    if (!sent) return;
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    sent = false;
  }

  void keep_off_my_core(uint32_t generation) {
    int mine = sched_getcpu();
    if (sent || (came == generation && core != mine) || mine < 0 || mine >= CPU_SETSIZE) return;
    if (pthread_getaffinity_np(thread, sizeof cores, &cores) || !CPU_ISSET(mine, &cores) || CPU_COUNT(&cores) < 2) return;
    cpu_set_t others = cores;
    CPU_CLR(mine, &others);
    if (!pthread_setaffinity_np(thread, sizeof others, &others)) sent = true;
  }
#else
  void report(uint32_t generation) { came = generation; }
  void keep_off_my_core(uint32_t) {}
#endif
};

struct Pool {
  std::mutex busy;                      // one job at a time; whoever finds it taken works alone
  std::atomic<uint64_t> ticket{0};      // generation << 32 | next item: a late worker cannot claim from a job that is over
  std::atomic<uint32_t> generation{0};  // what workers sleep on
  std::atomic<uint32_t> done{0};        // what the caller sleeps on
  std::atomic<uint32_t> count{0};
  std::atomic<int> allowed{0};          // workers that may take part
  std::atomic<Item> item{nullptr};
  std::atomic<void*> context{nullptr};
  std::deque<Worker> workers;

  // Claims the next item, if there is one. After a claim the job cannot end before the item is counted as done.
  bool claim(int64_t& index) {
    uint64_t now = ticket.load();
    while (uint32_t(now) < count.load())
      if (ticket.compare_exchange_weak(now, now + 1)) {
        index = uint32_t(now);
        return true;
      }
    return false;
  }

  void work(int number, Worker& worker) {
    uint32_t seen = 0;
    for (;;) {
      if (!spin_until([&] { return generation.load() != seen; })) generation.wait(seen);
      worker.report(seen = generation.load());
      int64_t index;
      while (number < allowed.load() && claim(index)) {
        item.load()(context.load(), index);
        worker.report(seen);
        if (done.fetch_add(1) + 1 == count.load()) done.notify_all();
      }
    }
  }

  // Starts workers up to `wanted`. They take no signals, which belong to the program's own threads; faults stay theirs. If
  // the system gives no more threads, those there are do the work.
  void start(int wanted) {
    if (int(workers.size()) >= wanted) return;
    sigset_t most, before;
    sigfillset(&most);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) sigdelset(&most, fault);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    while (int(workers.size()) < wanted) {
      Worker& worker = workers.emplace_back();
      try {
        std::thread thread([this, n = int(workers.size()) - 1, &worker] { work(n, worker); });
#if defined(__linux__)
        worker.thread = thread.native_handle();
#endif
        thread.detach();
      } catch (const std::system_error&) {
        workers.pop_back();
        break;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool run(uint32_t items, int threads, Item f, bool (*poll)(void*), void* c) {
    start(threads - 1);
    int helpers = std::min(threads - 1, int(workers.size()));
    for (int i = 0; i < helpers; ++i) workers[i].keep_off_my_core(generation);
    // Nobody can claim while count is 0; so the pieces of the new job are never seen half written.
    count = 0;
    item = f;
    context = c;
    done = 0;
    allowed = threads - 1;
    ticket = uint64_t(generation.load() + 1) << 32;
    count = items;
    ++generation;
    generation.notify_all();
    auto look = std::chrono::steady_clock::now();
    int which = 0;
    bool stopped = false;
    for (int64_t index; claim(index);) {
      f(c, index);
      ++done;
      // One worker an item, and not when items are short: there may be many workers.
      if (auto now = std::chrono::steady_clock::now(); helpers && now - look > std::chrono::microseconds(50)) {
        workers[which].keep_off_my_core(generation);
        which = (which + 1) % helpers;
        look = now;
      }
      if (!stopped && (stopped = poll(c))) {
        uint64_t before = ticket.fetch_or(most_items);  // nothing left to claim
        uint32_t next = uint32_t(before);
        if (next < items) done += items - next;
      }
    }
    if (!spin_until([&] { return done.load() >= items; }))
      for (uint32_t now; (now = done.load()) < items;) done.wait(now);
    return !stopped;
  }
};

Pool* pool = nullptr;
std::mutex making;

// A child of fork has the memory of the pool but none of its threads: it starts afresh.
void forget_pool() {
  pool = nullptr;
  new (&making) std::mutex;
}

Pool& the_pool() {
  std::lock_guard<std::mutex> lock(making);
  if (!pool) {
    static bool registered = false;
    if (!registered) pthread_atfork(nullptr, nullptr, forget_pool);
    registered = true;
    pool = new Pool;  // never freed: its threads may outlive everything else
  }
  return *pool;
}

bool run_alone(int64_t count, Item item, bool (*poll)(void*), void* context) {
  for (int64_t i = 0; i < count; ++i) {
    item(context, i);
    if (i + 1 < count && poll(context)) return false;
  }
  return true;
}

// A job of PyTorch's threads (team.h), which wait for each other at its end. Only the caller polls.
struct Shared {
  int64_t count;
  Item item;
  bool (*poll)(void*);
  void* context;
  pthread_t caller = pthread_self();
  std::atomic<int64_t> next{0};
  std::atomic<bool> stopped{false};

  void work() {
    bool asks = pthread_equal(caller, pthread_self());
    for (int64_t i; !stopped && (i = next++) < count;) {
      item(context, i);
      if (asks && poll(context)) stopped = true;
    }
  }
};

}  // namespace

bool run_items(int64_t count, int threads, Item item, bool (*poll)(void*), void* context) {
  if (threads <= 1 || count <= 1 || count > most_items) return run_alone(count, item, poll, context);
  Pool& p = the_pool();
  std::unique_lock<std::mutex> lock(p.busy, std::try_to_lock);
  if (!lock) return run_alone(count, item, poll, context);
  Shared job{count, item, poll, context};
  if (on_team(threads, [](void* shared) { static_cast<Shared*>(shared)->work(); }, &job)) return !job.stopped;
  return p.run(uint32_t(count), threads, item, poll, context);
}

}  // namespace regard
