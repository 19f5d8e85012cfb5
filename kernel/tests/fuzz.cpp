// libFuzzer's target: the bytes choose shapes, strides, types, ranges, masks and wild contents. Judged by the sanitizers that it
// is built with and by the formula. kernel/long builds and runs it.
#include "reference.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  regard::Source source{data, size, 0};
  if (!regard::try_problem(source, source.below(8) ? 2e4 : 5e5, true)) abort();
  return 0;
}
