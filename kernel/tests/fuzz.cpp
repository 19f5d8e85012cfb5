// libFuzzer's target: the bytes choose shapes, strides, types, ranges, masks and wild contents. Judged by the sanitizers that it
// is built with and by the formula. kernel/long builds and runs it.
#include "reference.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  regard::Source source{data, size, 0};
  if (!regard::try_problem(source, 2e5, true)) abort();
  return 0;
}
