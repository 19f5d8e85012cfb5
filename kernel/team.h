// PyTorch's own threads, where it computes with OpenMP. After each of its operations they go on turning for milliseconds, so that
// threads of ours beside them would have to share their cores; work given to the team that is awake starts at once.
#pragma once

namespace regard {

// The calling thread computes with PyTorch's tensors: from now on its work goes to the team that PyTorch's operations use there.
void join_team();

// Calls work(context) once on each thread of the calling thread's team, itself among them. False, with nothing called, where it
// has none, or one of a single thread or more than `threads`.
bool on_team(int threads, void (*work)(void*), void* context);

}  // namespace regard
