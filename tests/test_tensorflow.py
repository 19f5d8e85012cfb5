"""TensorFlow's door: the kernel, and block by block; eager, in graphs, compiled, saved."""

import contextlib
import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from cases import ANSWERS, CASES, GRADIENTS, REFUSED
from fresh import fresh as new
from hypothesis import given, settings
from hypothesis import strategies as st
from near import FLOATS, floats, naive, near
from test_properties import ARGUMENTS, Random, calls

import regard
from regard import _kernel
from regard.core.dropout import multipliers
from regard.tensorflow import blocks, door, dot_product_attention, kernel, look, lowered

# Section 12 of the lesson on attention: one query, three keys.
QUERY = [[1.0, 0.0]]
KEYS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
VALUES = [[10.0, 0.0], [0.0, 20.0], [30.0, 30.0]]
OUTPUT = [[16.892754, 15.776814]]

by_name = {"ids": lambda case: case.name}


@contextlib.contextmanager
def only_blocks():
    """Inside, TensorFlow's own operations compute, as if all tensors were on an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "_route", lambda *_: blocks.BLOCKS)
        yield


def tensors(options):
    """The same options with tensors for arrays."""

    def one(x):
        return tf.constant(x) if isinstance(x, np.ndarray) else x

    return {n: tuple(map(one, x)) if isinstance(x, tuple) else one(x) for n, x in options.items()}


def computed(how, inputs, function=dot_product_attention, **options):
    """Call a function of tensors in one of the ways, with tensors for all arrays."""
    call, options = function, tensors(options)
    inputs = [tf.constant(x) for x in inputs]
    if how in ("graph", "compiled"):
        # What is no tensor stays out of the traced function's arguments.
        rest = {n: x for n, x in options.items() if not tf.is_tensor(x)}
        options = {n: x for n, x in options.items() if n not in rest}
        call = tf.function(
            lambda *inputs, **options: function(*inputs, **options, **rest),
            jit_compile=how == "compiled",
            autograph=False,
        )
    with only_blocks() if how == "blocks" else contextlib.nullcontext():
        return call(*inputs, **options)


fresh = partial(new, seconds=240, TF_CPP_MIN_LOG_LEVEL="2", OMP_NUM_THREADS="1")


# ------------------------------------------------------------------------------------ right answers

# Compiling takes a second each: these cases hold all there is to compile.
COMPILED = {
    "rows that may attend nothing",
    "unequal blocks in bfloat16",
    "a bias of minus infinity",
    "a window alone",
    "the soft cap comes before the bias",
    "groups of heads are consecutive",
    "an empty batch",
    "no queries",
}


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
@pytest.mark.parametrize("case", CASES, **by_name)
def test_cases(case, how):
    if how == "compiled" and case.name not in COMPILED:
        return
    before = _kernel.calls()[0]
    output, lse = computed(how, case.inputs, **case.options, return_lse=True)
    assert output.dtype == case.query.dtype.name
    relative, absolute = case.tolerance
    np.testing.assert_allclose(
        np.asarray(output).astype(float), case.answer("output"), relative, absolute
    )
    assert _kernel.calls()[0] - before == (how in ("eager", "graph"))
    weights = regard.look(*case.inputs, **case.options)
    np.testing.assert_allclose(lse, weights.lse, 1e-5, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, **by_name)
def test_all_cases_compiled(case):
    output = computed("compiled", case.inputs, **case.options)
    relative, absolute = case.tolerance
    np.testing.assert_allclose(
        np.asarray(output).astype(float), case.answer("output"), relative, absolute
    )


# test_attention.py says why the weights beside the lowest bias are not right yet.
SHOWN = [c for c in CASES if "weights" in ANSWERS[c.name] and "lowest" not in c.name]


@pytest.mark.parametrize("case", SHOWN, **by_name)
def test_weights_of_cases(case):
    seen = regard.look(*map(tf.constant, case.inputs), **tensors(case.options))
    relative, absolute = case.tolerance
    np.testing.assert_allclose(seen.weights[...], case.answer("weights"), relative, absolute)
    assert isinstance(seen.output, tf.Tensor)
    assert seen.check().verified


def in_tensorflow(judge, query, key, value, options):
    """The formula in TensorFlow's operations: output, nothing, and lse."""
    wide = np.float64 if query.dtype == np.float64 else np.float32
    q, k, v = (tf.cast(x, wide) for x in (query, key, value))
    k, v = (tf.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    batch = judge.scores.shape[:-2]  # products of TensorFlow 2.21 must not repeat it (lowered.py)
    q, k, v = (tf.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (q, k, v))
    scores = tf.matmul(q, k, transpose_b=True) * wide(judge.scale)
    if cap := options.get("softcap"):
        scores = cap * tf.tanh(scores / wide(cap))
    if (bias := options.get("bias")) is not None:
        scores += tf.cast(bias, wide)
    scores = tf.where(judge.allowed, scores, wide(-np.inf))
    sinks = wide(-np.inf) if (sinks := options.get("sinks")) is None else sinks.astype(wide)
    sink = tf.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:-1], 1))
    logits = tf.concat([scores, sink], -1)
    weights = tf.where(judge.allowed, tf.nn.softmax(logits)[..., :-1], 0)
    output = tf.matmul(weights * judge.kept.astype(wide), v)
    return tf.cast(output, query.dtype), None, tf.reduce_logsumexp(logits, -1)


@settings(max_examples=60)
@given(
    call=calls(),
    names=st.sets(st.sampled_from(ARGUMENTS), max_size=5),
    how=st.sampled_from(["eager", "blocks"]),
)
def test_any_arguments_on_any_shape(call, names, how):
    options = call.options(sorted(names))
    output, lse = computed(how, call.arrays, **options, return_lse=True)
    judge = regard.steps(*call.arrays, **options)
    by_formula = naive(judge, *call.arrays, options)
    if how == "blocks":  # its yardstick is the formula in the same operations
        by_formula = in_tensorflow(judge, *call.arrays, options)
    near(output, judge.output, by_formula[0], call.arrays[0].dtype, "output")
    near(lse, judge.lse, by_formula[2], lse.dtype.as_numpy_dtype, "lse")


def test_blocks_and_joints(monkeypatch):
    call = Random(3, np.float32, (2,), (6, 3), 13, 11, single={0})
    options = call.options(["bias", "mask", "ranges", "segments", "sinks", "dropout", "window"])
    whole = computed("blocks", call.arrays, **options, return_lse=True)
    monkeypatch.setattr(lowered, "BLOCK", 2 * 6 * 11 * 5)  # five rows, so the last block has three
    for how in ("blocks", "compiled"):
        for a, b in zip(computed(how, call.arrays, **options, return_lse=True), whole, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
def test_the_lesson(how):
    inputs = [np.float32(x) for x in (QUERY, KEYS, VALUES)]
    np.testing.assert_allclose(computed(how, inputs, scale=1), OUTPUT, 1e-6)


@pytest.mark.parametrize("how", ["eager", "graph", "blocks"])
def test_heads_behind_rows(how):
    call = Random(5, np.float32, (2,), (6, 3), 13, 11)
    options = call.options(["causal", "mask", "softcap"])
    expected, lse = regard.attention(*call.arrays, **options, return_lse=True)
    turned = [x.swapaxes(1, 2) for x in call.arrays]
    found = computed(how, turned, **options, heads_axis=-2, return_lse=True)
    np.testing.assert_allclose(found[0], expected.swapaxes(1, 2), 1e-5, 1e-6)
    np.testing.assert_allclose(found[1], lse, 1e-5, 1e-6)


@pytest.mark.parametrize("how", ["eager", "blocks"])
def test_what_is_masked_never_matters_and_what_is_attended_shows(how):
    q, k, v = (np.ones((1, 1, n, 2), np.float32) for n in (3, 5, 5))
    k[0, 0, 1] = np.nan
    v[0, 0, 1], v[0, 0, 3, 0], v[0, 0, 4, 0] = np.nan, -np.inf, np.inf
    # The first row sees nothing of it, the second -inf, the third both.
    ranges = (np.array([[0, 2, 2]]), np.array([[1, 4, 5]]))
    bias = np.zeros(5, np.float32)
    bias[1] = np.nan
    found = computed(how, (q, k, v), ranges=ranges, bias=bias)
    np.testing.assert_array_equal(found[0, 0], [[1, 1], [-np.inf, 1], [np.nan, 1]])


@floats
def test_merge(dtype):
    call = Random(7, dtype, (2,), (3, 3), 13, 11)
    whole, lse = regard.attention(*call.arrays, return_lse=True)
    q, k, v = map(tf.constant, call.arrays)
    parts = [
        regard.attention(q, k[..., p, :], v[..., p, :], return_lse=True)
        for p in (slice(4), slice(4, 4), slice(4, 11))
    ]
    merged = regard.merge(*zip(*parts, strict=True))
    eps = float(np.finfo(np.float32).eps if dtype == FLOATS[3] else np.finfo(dtype).eps)
    eps = 2.0**-7 if dtype == FLOATS[3] else eps
    assert merged[0].dtype == q.dtype
    np.testing.assert_allclose(
        np.asarray(merged[0]).astype(float), whole.astype(float), 4 * eps, 4 * eps
    )
    np.testing.assert_allclose(merged[1], lse, 1e-5)


def test_merged_parts_have_gradients_also_where_there_is_no_key():
    lses = [tf.constant([[1.0, -np.inf]]), tf.constant([[2.0, -np.inf]])]
    outputs = [tf.ones((1, 2, 3)), tf.fill((1, 2, 3), np.nan)]
    outputs[1] = tf.concat([tf.ones((1, 1, 3)), outputs[1][:, 1:]], 1)
    with tf.GradientTape() as tape:
        tape.watch([outputs, lses])
        output, lse = regard.merge(outputs, lses)
    np.testing.assert_allclose(output, [[[1] * 3, [0] * 3]])
    np.testing.assert_allclose(lse, [[np.logaddexp(1, 2), -np.inf]])
    for grad in tf.nest.flatten(tape.gradient([output, lse], [outputs, lses])):
        assert np.isfinite(grad).all()


# ---------------------------------------------------------------------------------------- gradients


def by_hand(query, key, value, bias, sinks, judge, softcap):
    """Output and lse by the plain formula, for TensorFlow to differentiate in float64."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (
        tf.repeat(tf.broadcast_to(x, [query.shape[0], *x.shape[1:]]), group, 1)
        for x in (key, value)
    )
    scores = tf.matmul(query, key, transpose_b=True) * judge.scale
    scores = softcap * tf.tanh(scores / softcap) + bias
    scores = tf.where(judge.allowed, scores, -1e30)
    sink = tf.broadcast_to(sinks[:, None, None], [*scores.shape[:-1], 1])
    lse = tf.reduce_logsumexp(tf.concat([scores, sink], -1), -1)
    weights = tf.where(judge.allowed, tf.exp(scores - lse[..., None]), 0)
    return tf.matmul(weights * judge.kept, value), lse


def gradients(function, arguments, cotangents):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        found = function(*arguments)
        found = found if isinstance(found, tuple | list) else [found]
        total = tf.add_n(
            [
                tf.reduce_sum(tf.cast(x, tf.float64) * tf.cast(c, tf.float64))
                for x, c in zip(found, cotangents, strict=True)
            ]
        )
    return tape.gradient(total, arguments)


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
@pytest.mark.parametrize("case", GRADIENTS, **by_name)
def test_gradient_cases(case, how):
    names = ["query", "key", "value"] + ["bias"] * ("bias" in case.options)
    arguments = [tf.constant(case.options.get(n, getattr(case, n, None))) for n in names]
    rest = {n: x for n, x in case.options.items() if n != "bias"}

    def call(q, k, v, bias=None):
        return dot_product_attention(q, k, v, bias=bias, **rest)

    if how in ("graph", "compiled"):
        call = tf.function(call, jit_compile=how == "compiled", autograph=False)
    with only_blocks() if how == "blocks" else contextlib.nullcontext():
        found = gradients(call, arguments, [case.cotangent])
    relative, absolute = case.tolerance
    for name, grad in zip(names, found, strict=True):
        np.testing.assert_allclose(grad, case.answer(name), relative, absolute, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["eager", "turned", "graph", "blocks", "five rows", "compiled"])
def test_gradients_of_everything(how, dtype, monkeypatch):
    if how == "compiled" and dtype == np.float64:
        return
    call = Random(11, dtype, (2,), (6, 3), 13, 11, single={0})
    options = call.options(["mask", "causal", "softcap", "dropout", "ranges"])
    options["mask"][..., 2, :] = False
    bias, sinks = call.normal(6, 1, 11).astype(dtype), call.normal(6).astype(dtype)
    cotangents = call.normal(2, 6, 13, 7), call.normal(2, 6, 13)
    arguments = [tf.constant(x) for x in (*call.arrays, bias, sinks)]

    def fn(q, k, v, bias, sinks):
        if how != "turned":
            return dot_product_attention(
                q, k, v, bias=bias, sinks=sinks, **options, return_lse=True
            )
        q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
        output, lse = dot_product_attention(
            q, k, v, bias=bias, sinks=sinks, **options, return_lse=True, heads_axis=-2
        )
        return tf.transpose(output, [0, 2, 1, 3]), lse

    if how in ("graph", "compiled"):
        fn = tf.function(fn, jit_compile=how == "compiled", autograph=False)
    monkeypatch.setattr(lowered, "BLOCK", 2 * 6 * 11 * 5 if how == "five rows" else lowered.BLOCK)
    with only_blocks() if how in ("blocks", "five rows") else contextlib.nullcontext():
        found = gradients(fn, arguments, cotangents)

    judge = regard.steps(*call.arrays, bias=bias, sinks=sinks, **options)
    np.testing.assert_array_equal(
        judge.kept, multipliers(judge.kept.shape, options["dropout"], options["seed"])
    )
    wide = [tf.cast(x, tf.float64) for x in arguments]
    truth = gradients(lambda *x: by_hand(*x, judge, options["softcap"]), wide, cotangents)
    bound = 1e-11 if dtype == np.float64 else 1e-5
    for name, a, b in zip(("query", "key", "value", "bias", "sinks"), found, truth, strict=True):
        assert a.dtype == dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, bound, bound, err_msg=name)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("how", ["eager", "graph", "blocks"])
def test_gradients_of_halves(how, name):
    random = np.random.default_rng(0)
    inputs = [tf.cast(random.standard_normal((2, 3, n, 5)), name) for n in (7, 11, 11)]

    def fn(*x):
        return dot_product_attention(*x, causal=True, query_offset=4)

    one = np.ones((2, 3, 7, 5))
    wide = gradients(fn, [tf.cast(x, tf.float64) for x in inputs], [one])
    fn = tf.function(fn, autograph=False) if how == "graph" else fn
    with only_blocks() if how == "blocks" else contextlib.nullcontext():
        found = gradients(fn, inputs, [one])
    eps = {"float16": 2**-9, "bfloat16": 2**-6}[name]
    for a, b in zip(found, wide, strict=True):
        assert a.dtype == name
        np.testing.assert_allclose(tf.cast(a, tf.float64), b, 4 * eps, 4 * eps)


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
def test_gradients_beside_the_lowest_bias(how):
    random = np.random.default_rng(0)
    inputs = [tf.constant(random.standard_normal((2, 3, 5)), tf.float32) for _ in range(3)]
    bias = np.zeros((3, 3), np.float32)
    bias[1] = np.finfo(np.float32).min  # an ordinary softmax of equal scores

    def fn(*x):
        return dot_product_attention(*x, bias=bias)

    def plain(*x):
        scores = tf.matmul(x[0], x[1], transpose_b=True) / 5**0.5 + bias
        return tf.matmul(tf.nn.softmax(scores), x[2])

    cotangents = [random.standard_normal((2, 3, 5))]
    expected = gradients(plain, inputs, cotangents)
    if how in ("graph", "compiled"):
        fn = tf.function(fn, jit_compile=how == "compiled", autograph=False)
    with only_blocks() if how == "blocks" else contextlib.nullcontext():
        found = gradients(fn, inputs, cotangents)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


def test_gradients_of_a_shared_key_are_summed_in_float32():
    q = tf.ones((4096, 1, 1, 1), tf.float16)
    k = v = tf.ones((1, 1, 1, 1), tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = dot_product_attention(q, k, v)
    assert tape.gradient(y, v, output_gradients=y).numpy().item() == 4096


def test_gradients_by_tf_gradients_jacobian_and_vectorized_map():
    x = tf.random.stateless_normal((2, 5, 3), (0, 0))

    @tf.function(autograph=False)
    def inside(x):
        return tf.gradients(dot_product_attention(x, x, x), x)[0]

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = dot_product_attention(x, x, x)
    np.testing.assert_allclose(inside(x), tape.gradient(y, x), 1e-5, 1e-6)
    jacobian = tape.jacobian(y, x)
    np.testing.assert_allclose(tf.reduce_sum(jacobian, (0, 1, 2)), inside(x), 1e-5, 1e-6)
    mapped = tf.vectorized_map(lambda one: dot_product_attention(one, one, one), x)
    np.testing.assert_allclose(mapped, tf.stack([dot_product_attention(o, o, o) for o in x]))


@pytest.mark.parametrize("how", ["eager", "graph", "blocks"])
def test_second_derivatives_are_refused_and_never_none(how):
    x = tf.random.stateless_normal((2, 5, 3), (0, 0))
    fn = tf.function(dot_product_attention) if how == "graph" else dot_product_attention

    def second():
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = fn(x, x, x)
            grad = inner.gradient(y, x)
        return outer.gradient(grad, x)

    def forwards():
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            return forward.jvp(fn(x, x, x))

    with only_blocks() if how == "blocks" else contextlib.nullcontext():
        for wanted in (second, forwards):
            with pytest.raises(NotImplementedError, match=r"differentiated once.*forward mode"):
                wanted()


def test_variables_have_gradients_and_are_read_when_called():
    x = tf.Variable(tf.random.stateless_normal((2, 5, 3), (0, 0)))
    with tf.GradientTape() as tape:
        y = dot_product_attention(x, x, x)
    assert tape.gradient(y, x).shape == x.shape
    before = y.numpy()
    seen = regard.look(x, x, x)
    x.assign_add(tf.ones_like(x))
    np.testing.assert_array_equal(y, before)
    assert seen.check().verified


def test_a_look_keeps_the_gradient_of_its_output():
    x = tf.random.stateless_normal((2, 3, 5, 4), (0, 0))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        seen = look(x, x, x, heads_axis=-2)
        y = dot_product_attention(x, x, x, heads_axis=-2)
    assert seen.shape == (2, 5, 3, 3)
    assert seen.output.shape == (2, 3, 5, 4)
    assert seen.check().verified
    np.testing.assert_array_equal(tape.gradient(seen.output, x), tape.gradient(y, x))
    assert regard.look(x, x, x, copy=True).check().verified


# ------------------------------------------------------------------------------------------ dropout


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
def test_the_same_seed_drops_the_same_weights_everywhere(how):
    ones = np.ones((3, 2, 1, 5, 4)), np.ones((3, 2, 1, 7, 4)), np.eye(7)[None, None, None]
    kept = multipliers((3, 2, 1, 5, 7), 0.4, 2**63 + 12345)
    for seed in (2**63 + 12345, tf.constant(12345 - 2**63, tf.int64)):
        found = computed(how, ones, dropout=0.4, seed=seed)
        np.testing.assert_allclose(found, kept / 7, 1e-12)


def test_seeds_are_drawn_by_tensorflow():
    x = np.ones((1, 11, 2), np.float32)
    traced = tf.function(lambda: dot_product_attention(x, x, x * x.cumsum(1), dropout=0.5))

    def draws(call):
        tf.random.set_seed(5)
        return [call().numpy() for _ in range(2)]

    def eager():
        return dot_product_attention(x, x, x * x.cumsum(1), dropout=0.5)

    for call in (eager, traced):
        first = draws(call)
        assert not np.array_equal(*first)
        if call is eager:
            np.testing.assert_array_equal(first, draws(call))


# ------------------------------------------------------------------------------------ memory, traps


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13, 17])
def test_outputs_share_our_memory_at_addresses_tensorflow_can_read(size):
    for dtype in (tf.float64, tf.float32, tf.float16, tf.bfloat16):
        x = tf.cast(tf.random.stateless_normal((1, size, size), (0, 0)), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, lse = dot_product_attention(x, x, x, return_lse=True)
        for one in (y, lse, tape.gradient(y, x)):
            assert np.asarray(one).ctypes.data % 64 == 0


def test_nothing_is_copied_on_the_way_in_and_out(monkeypatch):
    seen = []
    forward = _kernel.forward
    monkeypatch.setattr(_kernel, "forward", lambda *x: seen.append(x[:4]) or forward(*x))
    x = tf.random.stateless_normal((2, 257, 16), (0, 0))
    for call in (dot_product_attention, tf.function(dot_product_attention)):
        y = call(x, x, x)
        query, *_, output = seen.pop()
        assert query.ctypes.data == np.asarray(x).ctypes.data
        assert output.ctypes.data == np.asarray(y).ctypes.data


def test_arrays_of_tensorflow_are_never_written_to():
    x = tf.random.stateless_normal((2, 5, 3), (0, 0))
    same, before = tf.identity(x), x.numpy()
    for call in (dot_product_attention, tf.function(dot_product_attention)):
        gradients(lambda x, call=call: call(x, x, x), [x], [np.ones(x.shape)])
        np.testing.assert_array_equal(same, before)


# TensorFlow ends the process at the first operation on memory that is not aligned.
TRAPS = """
import numpy as np, tensorflow as tf, regard
raw = np.zeros(4 * 1000 + 64, np.uint8)
begin = -raw.ctypes.data % 64 + 4
crooked = raw[begin : begin + 4 * 3 * 5 * 7].view(np.float32).reshape(3, 5, 7)
crooked[...] = np.random.default_rng(0).standard_normal(crooked.shape)
straight = tf.constant(crooked)
tensor = tf.experimental.dlpack.from_dlpack(crooked.__dlpack__())
output = regard.attention(tensor, tensor, tensor)
assert np.array_equal(output, regard.attention(straight, straight, straight))
for size in range(1, 40):
    x = tf.random.normal((size, 3, 1))
    y, lse = regard.attention(x, x, x, return_lse=True)
    assert np.isfinite(tf.reduce_sum(tf.matmul(y, y, transpose_a=True) + lse[:, :1, None]))
"""


LONG = """
import resource, sys
from regard.tensorflow import blocks, door
x = tf.random.normal((1, 8209, 8))
def step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(regard.attention(x, x, x, causal=True, dropout=0.1))
    return tape.gradient(y, x)
small = x[:, :7]
graph = tf.function(step)
step(small), graph(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(x), graph(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
door._route = lambda *_: blocks.BLOCKS
graph = tf.function(lambda x: regard.attention(x, x, x, causal=True))
graph(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
graph(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_address_ends_the_process_and_no_table_of_all_weights_is_held():
    by_kernel, by_blocks = (int(n) / 1024 for n in fresh(TRAPS + LONG).split())
    assert 8209**2 * 4 / 2**20 > 250
    assert by_kernel < 40
    assert by_blocks < 150


# -------------------------------------------------------------------------- graphs, saved, compiled


def test_the_way_is_chosen_while_a_function_is_traced(monkeypatch):
    x = tf.ones((1, 5, 3))
    chosen = []
    route = door._route
    monkeypatch.setattr(door, "_route", lambda *a: chosen.append(route(*a)) or chosen[-1])

    def attend(x):
        return dot_product_attention(x, x, x)

    attend(x)
    tf.function(attend)(x)
    tf.function(attend, jit_compile=True)(x)
    # Also in what a compiled function calls, and in its loops.
    inner = tf.function(attend)
    tf.function(lambda x: tf.map_fn(inner, x[None]) + inner(x), jit_compile=True)(x)
    K, B = kernel.TRACED, blocks.BLOCKS
    assert chosen == [kernel.EAGER, K, B, B]
    # With an accelerator, what is placed nowhere yet may end up there.
    monkeypatch.setattr(door, "_has_accelerator", lambda: True)
    del chosen[:]
    tf.function(attend)(x)

    @tf.function
    def placed():
        with tf.device("CPU:0"):
            return attend(tf.ones((1, 5, 3)))

    placed()
    assert chosen == [B, K]


@pytest.mark.parametrize("how", ["graph", "compiled"])
def test_sizes_that_are_not_known_while_tracing(how):
    call = Random(13, np.float32, (2,), (6, 3), 13, 11)
    options = call.options(["bias", "mask", "key_lengths", "ranges"])
    arrays = [*call.arrays, options["bias"], options["mask"]]

    @tf.function(
        jit_compile=how == "compiled",
        autograph=False,
        input_signature=[tf.TensorSpec([None] * x.ndim, x.dtype) for x in arrays],
    )
    def attend(q, k, v, bias, mask):
        rest = {n: options[n] for n in ("key_lengths", "ranges")}
        return dot_product_attention(q, k, v, bias=bias, mask=mask, **rest, return_lse=True)

    expected = regard.attention(*call.arrays, **options, return_lse=True)
    for a, b in zip(attend(*arrays), expected, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_shapes_are_known_while_tracing():
    @tf.function
    def attend(x):
        y, lse = dot_product_attention(x, x[:, :1], x[:, :1, :, :4], return_lse=True)
        assert y.shape == (2, 3, 5, 4)
        assert lse.shape == (2, 3, 5)
        t, lse = dot_product_attention(x, x, x, return_lse=True, heads_axis=-2)
        assert t.shape == x.shape
        assert lse.shape == (2, 5, 3)
        return y

    attend(tf.ones((2, 3, 5, 7)))


def test_data_pipelines():
    x = tf.random.stateless_normal((4, 2, 5, 3), (0, 0))
    data = tf.data.Dataset.from_tensor_slices(x).map(
        lambda one: dot_product_attention(one, one, one, causal=True), num_parallel_calls=2
    )
    expected = dot_product_attention(x, x, x, causal=True)
    np.testing.assert_array_equal(np.stack(list(data.as_numpy_iterator())), expected)


class Lesson(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2])] * 3)
    def attend(self, query, keys, values):
        return dot_product_attention(query, keys, values, scale=1)

    @tf.function
    def unsigned(self, x):
        return dot_product_attention(x, x, x)


LOADED = """
import sys
import tensorflow as tf
sys.modules["regard"] = None
lesson = tf.saved_model.load(sys.argv[1])
query, keys, values = (tf.constant(eval(x)) for x in sys.argv[2:])
with tf.GradientTape(persistent=True) as tape:
    tape.watch([query, keys, values])
    found = lesson.attend(query, keys, values)
    weights = tf.nn.softmax(tf.matmul(query, keys, transpose_b=True))
    expected = tf.matmul(weights, values)
tf.debugging.assert_near(found, expected)
for a, b in zip(*(tape.gradient(y, [query, keys, values]) for y in (found, expected))):
    tf.debugging.assert_near(a, b, 1e-5, 1e-5)
print(found.numpy().tolist())
"""


def test_a_saved_model_needs_no_regard(tmp_path):
    lesson, path = Lesson(), str(tmp_path / "lesson")
    np.testing.assert_allclose(lesson.attend(*map(tf.constant, (QUERY, KEYS, VALUES))), OUTPUT)
    tf.saved_model.save(
        lesson, path, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    )
    found = fresh(LOADED, path, QUERY, KEYS, VALUES)
    np.testing.assert_allclose(eval(found.splitlines()[-1]), OUTPUT, 1e-6)


def test_what_could_not_be_loaded_elsewhere_is_not_saved(tmp_path):
    lesson, path = Lesson(), str(tmp_path / "lesson")
    lesson.unsigned(tf.ones((3, 2)))  # traced again while it is saved
    tf.saved_model.save(lesson, path)
    (saved,) = tf.saved_model.load(path).unsigned.concrete_functions
    assert not [op for op in saved.graph.get_operations() if "PyFunc" in op.type]
    concrete = lesson.unsigned.get_concrete_function(tf.TensorSpec([5, 2]))
    with pytest.raises(ValueError, match="only this process"):
        tf.saved_model.save(lesson, path, signatures=concrete)


# ---------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("how", ["eager", "graph", "blocks", "compiled"])
@pytest.mark.parametrize(("case", "error"), REFUSED, ids=[case.name for case, _ in REFUSED])
def test_refused(case, error, how):
    with pytest.raises(error):
        computed(how, case.inputs, **case.options)


def test_what_no_graph_can_know_is_refused_when_it_runs():
    attend = tf.function(lambda x, n: dot_product_attention(x, x, x, key_lengths=n))
    with pytest.raises(tf.errors.InvalidArgumentError, match="key_lengths"):
        attend(tf.ones((2, 5, 3)), tf.constant(6))
    unknown = [tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])]
    attend = tf.function(
        lambda q, k: dot_product_attention(q, k, k, causal=True), input_signature=unknown
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="query_offset"):
        attend(tf.ones((5, 3)), tf.ones((7, 3)))
    with only_blocks(), pytest.raises(tf.errors.InvalidArgumentError, match="query_offset"):
        attend(tf.ones((5, 3)), tf.ones((7, 3)))


def test_a_bias_that_spoils_a_row():
    q, bias = tf.ones((1, 2, 3)), tf.constant([[0.0, np.inf], [0.0, 0.0]])
    with pytest.raises(ValueError, match="bias"):
        dot_product_attention(q, q, q, bias=bias)
    for call in (
        tf.function(dot_product_attention),
        tf.function(dot_product_attention, jit_compile=True),
    ):
        found = call(q, q, q, bias=bias).numpy()
        assert np.isnan(found[0, 0]).all()
        np.testing.assert_allclose(found[0, 1], 1)


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (TypeError, "query", {"query": "word"}),
        (TypeError, "to_tensor", {"query": tf.ragged.constant([[1.0], [1.0, 2.0]])}),
        (TypeError, "to_dense", {"key": tf.sparse.from_dense([[1.0]])}),
        (TypeError, "scale=1", {"scale": tf.constant(2.0)}),
        (TypeError, "dropout", {"dropout": tf.Variable(0.5)}),
        (TypeError, "mask", {"mask": tf.ones((2, 2))}),
        (TypeError, "one dtype", {"query": tf.ones((1, 2, 3), tf.float64)}),
        (ValueError, "heads_axis", {"heads_axis": 1}),
        (ValueError, "softcap", {"softcap": -1.0}),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_wrong_arguments(error, words, options, unknown):
    x = {n: tf.ones((1, 2, 3)) for n in ("query", "key", "value")}
    if unknown and words in ("to_tensor", "to_dense", "query"):
        return
    if not unknown:
        with pytest.raises(error, match=words):
            dot_product_attention(**(x | options))
        return

    @tf.function(input_signature=[tf.TensorSpec([None, None, None])], autograph=False)
    def attend(one):
        return dot_product_attention(**(dict.fromkeys(x, one) | options))

    with pytest.raises(error, match=words):
        attend(x["query"])


def test_a_look_needs_values():
    x = tf.ones((1, 2, 3))
    with pytest.raises(TypeError, match="outside of"):
        tf.function(lambda x: regard.look(x, x, x).output)(x)


def test_merge_refuses_what_does_not_fit():
    x, lse = tf.ones((1, 2, 3)), tf.ones((1, 2))
    for error, outputs, lses in (
        (ValueError, [x], [lse, lse]),
        (ValueError, [x], [x]),
        (TypeError, [x, tf.cast(x, tf.float64)], [lse, lse]),
    ):
        with pytest.raises(error, match="outputs and lses"):
            regard.merge(outputs, lses)


def test_numpy_options_and_lists_beside_tensors():
    x = tf.random.stateless_normal((1, 5, 3), (0, 0))
    expected = regard.attention(x.numpy(), x.numpy(), x.numpy(), mask=[True, False] * 2 + [True])
    for how in ("eager", "graph", "blocks"):
        found = computed(how, (x, x.numpy(), x), mask=[True, False] * 2 + [True])
        np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "causal"), [((8, 12, 512, 64), False), ((1, 9, 4096, 64), True)])
def test_faster_than_keras(shape, causal):
    keras = pytest.importorskip("keras")
    heads = [tf.random.normal(shape) for _ in range(3)]
    rows = [tf.transpose(x, [0, 2, 1, 3]) for x in heads]
    theirs = tf.function(lambda *x: keras.ops.dot_product_attention(*x, is_causal=causal))

    def seconds(call, arguments):
        took = []
        for _ in range(6):
            begin = time.perf_counter()
            call(*arguments)
            took.append(time.perf_counter() - begin)
        return min(took[1:])

    ours = seconds(lambda *x: dot_product_attention(*x, causal=causal), heads)
    assert seconds(theirs, rows) > 2.5 * ours
