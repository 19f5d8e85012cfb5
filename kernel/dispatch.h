// Picks the instruction set and spreads a problem over threads.
#pragma once
#include "attention.h"

namespace regard {

const Kernel* const* kernels(int* count);     // those this machine can run, the best last
const Kernel& kernel();                       // the one in use
bool use_kernel(const char* name);            // false: not here

int threads();
void set_threads(int count);

// All return flags, or -1 when poll() answered true (an interrupt) and the result is not whole.
int forward(const Problem&, bool (*poll)());
int tile(const Problem&, const Tile&, bool (*poll)());
int backward(const Problem&, const Gradients&, double* sinks, bool (*poll)());  // sinks: (H,), or null

int sums(const Problem&, const Sums&, bool (*poll)());
int top(const Problem&, const Top&, bool (*poll)());
int map(const Problem&, const Map&, bool (*poll)());

// How often each has run since the start: proof, for tests, of who computed.
struct Calls { uint64_t forward, backward, tile; };
Calls calls();

}  // namespace regard
