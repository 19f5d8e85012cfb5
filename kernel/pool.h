// Threads that wait for items, never callers that wait for threads: a worker that the system woke late holds nobody up.
#pragma once
#include <stdint.h>

namespace regard {

// Calls item(context, i) for every i below count, on up to `threads` threads, the caller among them. poll(context) is called
// by the caller between its items; once it answers true, no further item is begun. Returns false if that happened.
bool run_items(int64_t count, int threads, void (*item)(void*, int64_t), bool (*poll)(void*), void* context);

}  // namespace regard
