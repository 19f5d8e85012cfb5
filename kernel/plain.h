// The plain path: one row in double precision, as the formula reads. It computes again the rows that the fast paths
// cannot keep exact (they attend a value that is not finite, or a sum left the range of float32).
#pragma once
#include "rule.h"

namespace regard {

// One row's output and lse, written in place. Returns flags.
int plain_row(const Problem& p, const Row& row);

// The gradient of one head's sink: it takes weight exp(sink - lse) in each row and gives no value.
double sink_gradient(const Problem& p, const Gradients& g, int64_t head);

}  // namespace regard
