// Picks the instruction set and spreads a problem over threads.
#pragma once
#include "attention.h"

namespace regard {

const Kernel* const* kernels(int* count);     // those this machine can run, the best last
const Kernel& kernel();                       // the one in use
bool use_kernel(const char* name);            // false: not here

int threads();
void set_threads(int count);

// Both return flags, or -1 when poll() answered true (an interrupt) and the result is not whole.
int forward(const Problem&, bool (*poll)());
int tile(const Problem&, const Tile&, bool (*poll)());

}  // namespace regard
