"""A checked call of NumPy arrays goes to the kernel, and its output and lse come back."""

import numpy as np

from regard import _kernel
from regard.core.arguments import BFLOAT16, FLOAT32, FLOAT64, Array, bits
from regard.core.call import Call


def compute(call: Call, exact: bool = False, by_row: bool = False) -> tuple[Array, Array]:
    """Compute a checked call: output (B…, H, T, V) and lse (B…, H, T).

    `exact`: lse in float64. `by_row`: the heads of a row stand side by side in the memory of the
    output, as models go on with them.
    """
    wide = FLOAT64 if exact or call.query.dtype == FLOAT64 else FLOAT32
    lse = np.empty(call.shape[:-1], wide)
    return output_of(call, lse, by_row), lse


def output_of(call: Call, lse: Array | None, by_row: bool = False) -> Array:
    """Compute a checked call; its lse is written where it is wanted."""
    query, key, value = call.query, call.key, call.value
    *batch, heads, rows, _ = call.shape
    order = (rows, heads) if by_row else (heads, rows)
    result = output = np.empty((*batch, *order, value.shape[-1]), query.dtype)
    if by_row:
        result = output = output.swapaxes(-3, -2)
    if query.dtype == BFLOAT16:
        query, key, value, result = bits(query), bits(key), bits(value), bits(output)
    attends_bad_bias = _kernel.forward(
        query, key, value, result, lse, *call.rule, call.dropout, call.seed, call.high
    )
    if attends_bad_bias:
        raise ValueError(
            "bias: expected finite numbers or -inf wherever a query may attend, "
            "received +inf or NaN"
        )
    return output
