"""The Attention operator of ONNX, opsets 23 to 25, as a class of the reference evaluator."""

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from regard import _kernel
from regard.core.arguments import FLOAT64, Array, bits, real
from regard.core.call import Call, check

RAW, CAPPED, BIASED, WEIGHTS = range(4)  # what a fourth output holds, by qk_matmul_output_mode


class Attention(OpRun):
    """ONNX's Attention: exact, and in memory linear in T + S unless a node asks for scores.

    Give it to the evaluator by name; everything of the operator is there: grouped heads, three or
    four axes, masks that are shorter than the keys, caches as past and present or as lengths,
    causal order, windows, soft cap. A fourth output, T × S by its definition, is made only for a
    node that has one. `softmax_precision` asks for nothing: sums are float32 or wider in any case.
    A row that may attend nothing is 0, as the operator says.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html

    >>> import onnx.parser
    >>> from onnx.reference import ReferenceEvaluator
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["": 23]>
    ...     lesson (float[1,1,1,2] q, float[1,1,3,2] k, float[1,1,3,2] v) => (float[1,1,1,2] y)
    ...     { y = Attention <scale = 1.0> (q, k, v) }
    ... ''')
    >>> evaluator = ReferenceEvaluator(model, new_ops=[Attention])
    >>> query = np.float32([[[[1, 0]]]])
    >>> keys = np.float32([[[[1, 0], [0, 1], [1, 1]]]])
    >>> values = np.float32([[[[10, 0], [0, 20], [30, 30]]]])
    >>> evaluator.run(None, {"q": query, "k": keys, "v": values})[0].round(4)
    array([[[[16.8928, 15.7768]]]], dtype=float32)
    """

    op_domain = ""

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        attn_mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        nonpad_kv_seqlen: Array | None = None,
        *,
        scale: float | None = None,
        is_causal: int | None = 0,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        softmax_precision: int | None = None,
        softcap: float | None = None,
        qk_matmul_output_mode: int | None = 0,
        left_window_size: int | None = None,
        right_window_size: int | None = None,
    ) -> tuple[Array, ...]:
        queries = query  # as the node has them: (B, H, T, D), or (B, T, H · D)
        query, key, value = (
            _by_head(*one)
            for one in (
                ("Q", query, "q_num_heads", q_num_heads),
                ("K", key, "kv_num_heads", kv_num_heads),
                ("V", value, "kv_num_heads", kv_num_heads),
            )
        )
        if (past_key is None) != (past_value is None):
            raise ValueError("past_key and past_value: expected both or none")
        offset: Any = 0
        if past_key is not None and past_value is not None:
            if nonpad_kv_seqlen is not None:
                raise ValueError("nonpad_kv_seqlen: expected none beside past_key and past_value")
            offset = past_key.shape[2]
            key = np.concatenate((past_key, key), axis=2)
            value = np.concatenate((past_value, value), axis=2)
        options: dict[str, Any] = {"scale": scale, "softcap": softcap or None}
        limits = _mask(attn_mask, key.shape[2])
        if nonpad_kv_seqlen is not None:
            lengths = np.asarray(nonpad_kv_seqlen).reshape(-1)
            offset = lengths - query.shape[2]
            limits["key_lengths"] = lengths.clip(0, key.shape[2])
        window = _side("left", left_window_size), _side("right", right_window_size)
        if is_causal or window != (None, None):
            limits |= {"causal": bool(is_causal), "window": window, "query_offset": offset}
        call = check(query, key, value, **options, **limits)
        mode = _mode(qk_matmul_output_mode) if self._has_output(3) else None
        output, lse = _computed(call, queries.ndim == 3, mode == WEIGHTS)
        if mode is None:
            return output, key, value
        if mode in (RAW, CAPPED):
            options["softcap"] = options["softcap"] if mode == CAPPED else None
            call = check(query, key, value, **options)
        return output, key, value, _table(call, lse)

    def _has_output(self, number: int) -> bool:
        return len(self.output) > number and self.output[number] != ""


def _by_head(name: str, array: Array, attribute: str, heads: int | None) -> Array:
    """(B, heads, rows, width), which is a view of an array (B, rows, heads · width)."""
    if array.ndim == 4:
        if heads is not None and heads != array.shape[1]:
            raise ValueError(
                f"{attribute}: expected it only with inputs of three axes, received {heads} "
                f"beside {name} {array.shape}"
            )
        return array
    if array.ndim != 3:
        raise ValueError(f"{name}: expected three or four axes, received {array.shape}")
    batch, rows, width = array.shape
    if not heads or heads < 0 or width % heads:
        raise ValueError(
            f"{attribute}: expected a divisor of the width of {name} {array.shape}, "
            f"received {heads}"
        )
    return array.reshape(batch, rows, heads, width // heads).swapaxes(1, 2)


def _mask(given: Array | None, keys: int) -> dict[str, Any]:
    """The mask as one of ours: booleans or floats; what it is short of may not be attended."""
    if given is None:
        return {}
    boolean = given.dtype == np.bool_
    if given.dtype.kind in "iu":
        given = given.astype(FLOAT64)  # ONNX adds numbers of any kind
    if given.shape[-1] < keys:
        short = [(0, 0)] * (given.ndim - 1) + [(0, keys - given.shape[-1])]
        given = np.pad(given, short, constant_values=False if boolean else -np.inf)
    if given.ndim == 3:  # (heads, T, S), in any case
        given = given[None]
    return {"mask" if boolean else "bias": given}


def _side(name: str, size: int | None) -> int | None:
    if size is None or size == -1:
        return None
    if size < -1:
        raise ValueError(f"{name}_window_size: expected -1 or a distance, received {size}")
    return size


def _mode(mode: int | None) -> int:
    if (mode or 0) not in (RAW, CAPPED, BIASED, WEIGHTS):
        raise ValueError(f"qk_matmul_output_mode: expected 0, 1, 2 or 3, received {mode}")
    return mode or 0


def _computed(call: Call, joined: bool, with_lse: bool) -> tuple[Array, Array | None]:
    """The output, (B, H, T, V) or with the heads joined (B, T, H · V), and the lse where wanted."""
    batch, heads, rows, _ = call.shape
    width = call.value.shape[-1]
    if joined:
        output = np.empty((batch, rows, heads * width), call.dtype)
        inner = output.reshape(batch, rows, heads, width).swapaxes(1, 2)
    else:
        output = inner = np.empty((batch, heads, rows, width), call.dtype)
    lse = np.empty((batch, heads, rows), FLOAT64) if with_lse else None
    query, key, value = bits(call.query), bits(call.key), bits(call.value)
    _kernel.forward(query, key, value, bits(inner), lse, *call.rule, 0.0, 0, False)
    return output, lse


def _table(call: Call, lse: Array | None) -> Array:
    """What a node asks for by its fourth output: weights where there is an lse, else scores."""
    out = np.empty(call.shape, real(call.dtype))
    what = "scores" if lse is None else "weights"
    _kernel.tile(what, bits(call.query), bits(call.key), lse, out, 0, 0, *call.rule)
    return out.astype(call.dtype, copy=False)
