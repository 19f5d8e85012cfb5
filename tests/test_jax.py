"""JAX's door: against `jax.nn`, under JAX's transformations, and against the textbook."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases import CASES, GRADIENTS, REFUSED
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from near import near, same

import regard
from regard import _kernel
from regard.jax import dot_product_attention

B, T, S, N, K, H = 2, 5, 7, 6, 3, 11


def normal(*shapes, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal(shape).astype(dtype)) for shape in shapes]


def calls():
    return np.array(_kernel.calls())[:2]


def close(found, wanted, dtype=np.float32, more=1):
    eps = float(ml_dtypes.finfo(dtype).eps)
    found, wanted = (np.asarray(one, np.float64) for one in (found, wanted))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=20 * more * eps * max(1, abs(wanted).max(initial=0))
    )


# ------------------------------------------------------------------------------- against `jax.nn`


def textbook(q, k, v, bias, mask, scale, ct):
    """Output and gradients of sum(output × ct) in float64, axes as in `jax.nn`."""
    q, k, v, ct = (x if x.ndim == 4 else x[None] for x in (q, k, v, ct))
    q, k, v, ct = (np.asarray(x).astype(np.float64).swapaxes(1, 2) for x in (q, k, v, ct))
    judge = regard.steps(q, k, v, scale=scale, mask=mask, bias=bias)
    fold = q.shape[-3] // k.shape[-3]
    keys, values = (np.repeat(x, fold, -3) for x in (k, v))
    weights = judge.weights
    of_weights = ct @ values.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
    of_key = judge.scale * of_scores.swapaxes(-1, -2) @ q
    of_value = weights.swapaxes(-1, -2) @ ct
    of_key, of_value = (
        x.reshape(*x.shape[:-3], k.shape[-3], fold, *x.shape[-2:]).sum(-3)
        for x in (of_key, of_value)
    )
    found = [judge.output, judge.scale * of_scores @ keys, of_key, of_value]
    found = [x.swapaxes(1, 2) for x in found]
    if bias is not None:
        axes = tuple(n for n, size in enumerate(bias.shape) if size != of_scores.shape[n])
        found.append(of_scores.sum(axes, keepdims=True))
    return found


@settings(max_examples=10, phases=[Phase.generate])
@given(st.data())
def test_values_and_gradients_are_those_of_jax_nn(data):
    """No farther from the textbook than twice as far as `jax.nn`, on rows that have a key."""
    draw = data.draw
    flag = st.booleans()
    kind = draw(st.sampled_from([np.float32, np.float32, ml_dtypes.bfloat16, np.float16]))
    batched = draw(flag)
    lead = (B,) if batched else ()
    size = B if batched else 1
    keys = draw(st.sampled_from([T, S]))
    heads, groups = draw(st.sampled_from([(N, N), (N, K), (N, 1)]))
    q, k, v, ct = normal(
        (*lead, T, heads, H), *[(*lead, keys, groups, H)] * 2, (*lead, T, heads, H), dtype=kind
    )
    options = {"is_causal": draw(flag), "scale": draw(st.sampled_from([None, 0.3]))}
    row, key = np.arange(T)[:, None], np.arange(keys)
    allowed = np.ones((size, heads, T, keys), bool)
    if options["is_causal"]:
        allowed &= key <= row
    bias = None
    if draw(flag):
        shape = draw(st.sampled_from([(1, 1, T, keys), (size, heads, T, keys)]))
        (bias,) = normal(shape, seed=1, dtype=kind)
    if draw(flag):
        mask = np.random.default_rng(2).random((1, heads, T, keys)) < 0.6
        mask[..., 0] = True
        options["mask"] = jnp.asarray(mask)
        allowed &= mask
    if draw(flag):
        lengths = np.array([3, keys][:size], np.int32)
        options["key_value_seq_lengths"] = jnp.asarray(lengths)
        allowed &= key < lengths[:, None, None, None]
    if draw(flag):
        lengths = np.array([4, T][:size], np.int32)
        options["query_seq_lengths"] = jnp.asarray(lengths)
        allowed &= row < lengths[:, None, None, None]
    if draw(flag):
        window = draw(st.sampled_from([(4, 1), (T, 0), 4]))
        options["local_window_size"] = window
        left, right = (window, window) if window == 4 else window
        allowed &= (row - left <= key) & (key <= row + right)

    def found(attend, wide=False):
        def loss(q, k, v, bias):
            output = attend(q, k, v, bias=bias, **options)
            return (output * ct).astype(jnp.float32).sum(), output

        number = range(3 if bias is None else 4)
        both = jax.value_and_grad(loss, tuple(number), has_aux=True)
        arrays = [
            one if one is None or not wide else one.astype(np.float32) for one in (q, k, v, bias)
        ]
        (_, output), grads = (jax.jit(both) if jitted else both)(*arrays)
        return [output, *grads]

    jitted = draw(flag)
    ours = found(dot_product_attention)
    jitted = True
    # JAX has no gradients of float16 on CPUs.
    theirs = found(jax.nn.dot_product_attention, wide=kind == np.float16)
    given_bias = None if bias is None else np.asarray(bias)
    truth = textbook(q, k, v, given_bias, allowed, options["scale"], ct)
    own = (q, q, k, v, bias)
    what = ("output", "query", "key", "value", "bias")
    for name, one, other, true, like in zip(what, ours, theirs, truth, own, strict=False):
        assert one.dtype == like.dtype
        near(one, true.reshape(one.shape), other, kind, name)


def test_the_residual():
    q, k, v = normal((B, T, N, H), *[(B, S, K, H)] * 2)
    ours = dot_product_attention(q, k, v, return_residual=True)
    theirs = jax.nn.dot_product_attention(q, k, v, return_residual=True)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        close(one, other)
    _, short = dot_product_attention(q[0], k[0], v[0], return_residual=True)
    close(short, theirs[1][0])
    gradient = jax.grad(lambda q: dot_product_attention(q, k, v, return_residual=True)[1].sum())
    assert not np.any(gradient(q))


def test_a_row_without_a_key_is_0():
    q, k, v = normal((B, T, N, H), *[(B, S, K, H)] * 2)
    lengths = jnp.array([0, 3], jnp.int32)
    output, residual = dot_product_attention(
        q, k, v, key_value_seq_lengths=lengths, return_residual=True
    )
    assert not output[0].any()
    assert np.isneginf(residual[0]).all()
    assert not dot_product_attention(q, k, v, local_window_size=(-1, -1)).any()
    window = (-1, 3)  # without the query itself
    close(
        dot_product_attention(q, k, v, local_window_size=window),
        jax.nn.dot_product_attention(q, k, v, local_window_size=window),
    )
    beyond = jnp.array([S + 9, S], jnp.int32)
    close(
        dot_product_attention(q, k, v, key_value_seq_lengths=beyond),
        jax.nn.dot_product_attention(q, k, v),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": (B, S, K, H + 2)}, "value"),
        ({"query": (B, T, N, H + 2)}, "query"),
        ({"query": (B, T, N - 1, H)}, "multiple"),
        ({"mask": jnp.ones((T, S), jnp.int32)}, "mask"),
        ({"bias": jnp.ones((T, S), bool)}, "bias"),
        ({"key_value_seq_lengths": jnp.ones(3, jnp.int32)}, "key_value_seq_lengths"),
        ({"implementation": "cudnn"}, "implementation"),
    ],
)
def test_refusals_name_the_argument(change, said):
    shapes = {"query": (B, T, N, H), "key": (B, S, K, H), "value": (B, S, K, H)}
    shapes |= {name: one for name, one in change.items() if name in shapes}
    arrays = {name: jnp.ones(shape) for name, shape in shapes.items()}
    arrays |= {name: one for name, one in change.items() if name not in shapes}
    with pytest.raises(ValueError, match=said):
        dot_product_attention(**arrays)


# ---------------------------------------------------------------------------- `regard.attention`


def as_jax(case):
    arrays = tuple(map(jnp.asarray, case.inputs))
    options = {
        name: jnp.asarray(one) if isinstance(one, np.ndarray) else one
        for name, one in case.options.items()
    }
    return arrays, options


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    arrays, options = as_jax(case)
    rtol, atol = case.tolerance
    moving = {name: one for name, one in options.items() if isinstance(one, jax.Array)}
    still = {name: one for name, one in options.items() if name not in moving}

    def attend(arrays, moving):
        return regard.attention(*arrays, **moving, **still)

    before = calls()[0]
    for found in (attend(arrays, moving), jax.jit(attend)(arrays, moving)):
        assert found.dtype == case.query.dtype
        found = np.asarray(found, np.float64)
        np.testing.assert_allclose(found, case.answer("output"), rtol=rtol, atol=atol)
    if case.query.size:
        assert calls()[0] == before + 2, "the kernel computes, also under jit"


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.name)
def test_gradients_of_cases(case):
    arrays, options = as_jax(case)
    rtol, atol = case.tolerance
    bias = options.pop("bias", None)

    def loss(query, key, value, bias):
        output = regard.attention(query, key, value, bias=bias, **options)
        return (output * case.cotangent).sum()

    names = ("query", "key", "value") if bias is None else ("query", "key", "value", "bias")
    gradient = jax.grad(loss, tuple(range(len(names))))
    before = calls()[1]
    for grads in (
        gradient(*arrays, bias),
        jax.jit(gradient)(*arrays, bias),
    ):
        for name, grad in zip(names, grads, strict=True):
            np.testing.assert_allclose(grad, case.answer(name), rtol=rtol, atol=atol)
    assert calls()[1] == before + 2


@pytest.mark.parametrize(("case", "error"), REFUSED, ids=lambda one: getattr(one, "name", ""))
def test_refused(case, error):
    arrays, options = as_jax(case)
    with pytest.raises(error):
        regard.attention(*arrays, **options)
    with pytest.raises(error):
        jax.jit(lambda a: regard.attention(*a, **options))(arrays)


# ---------------------------------------------------------------------- under JAX's transformations

EVERYTHING = {
    "mask": (3, 6, 5, 7),
    "bias": (6, 5, 7),
    "sinks": (6,),
    "key_lengths": (3,),
    "query_offset": (3,),
    "ranges": ((3, 5), (3, 5)),
    "segments": ((3, 5), (3, 7)),
}


def drawn(name, shape, lead=()):
    random = np.random.default_rng(sum(map(ord, name)))

    def numbers(shape, low, high):
        return jnp.asarray(random.integers(low, high, (*lead, *shape)))

    if name == "mask":
        return jnp.asarray(random.random((*lead, *shape)) < 0.8)
    if name in ("bias", "sinks"):
        return jnp.asarray(random.standard_normal((*lead, *shape)).astype(np.float32))
    if name == "ranges":
        return numbers(shape[0], 0, 3), numbers(shape[1], 3, 8)
    if name == "segments":
        return numbers(shape[0], 0, 2), numbers(shape[1], 0, 2)
    return numbers(shape, 2, 6)


@pytest.mark.parametrize("name", ["nothing", *EVERYTHING])
def test_vmap_is_one_call_after_the_other(name):
    """Whatever of a call is mapped over, and what is not; values and gradients."""
    q, k, v = normal((4, 3, 6, 5, 11), (3, 3, 7, 11), (3, 3, 7, 13))
    shape = EVERYTHING.get(name)
    option = None if shape is None else drawn(name, shape, lead=(4,))
    # Of q alone, of the option alone, and of both.
    for over in ((0, None), (None, 0), (0, 0)):
        if shape is None and over[1] == 0:
            continue

        def loss(query, option):
            options = {} if option is None else {name: option}
            causal = {"causal": True} if name == "query_offset" else {}
            return (regard.attention(query, k, v, **options, **causal) ** 2).sum()

        def both(query, option, loss=loss):
            return jax.value_and_grad(loss)(query, option)

        query = q if over[0] == 0 else q[0]
        own = option if over[1] == 0 or option is None else jax.tree.map(lambda x: x[0], option)
        found = jax.jit(jax.vmap(both, over))(query, own)
        for item in range(4):
            at = [
                jax.tree.map(lambda x, item=item: x[item], x) if axis == 0 else x
                for x, axis in zip((query, own), over, strict=True)
            ]
            for one, wanted in zip(found, both(*at), strict=True):
                close(one[item], wanted, more=10)


def test_vmap_of_vmap_over_other_axes():
    q, k, v = normal((2, 3, 5, 11), (3, 7, 11), (2, 7, 13))
    inner = jax.vmap(regard.attention, (0, 0, None))
    found = jax.vmap(inner, (0, None, 0))(q, k, v)
    for i in range(2):
        for j in range(3):
            close(found[i, j], regard.attention(q[i, j], k[j], v[i]))


def test_scan_and_remat():
    q, k, v = normal((3, 5, 11), *[(3, 5, 11)] * 2)

    def layers(attend):
        def step(x, _):
            return x + attend(x, k, v), None

        return lambda x: (jax.lax.scan(step, x, None, length=3)[0] ** 2).sum()

    plain = jax.grad(layers(regard.attention))(q)
    close(jax.jit(jax.grad(layers(jax.checkpoint(regard.attention))))(q), plain)


def test_flat_calls_under_jit():
    q, k, v = normal((5, 11), (7, 11), (7, 13))

    def loss(q, k, v):
        output, lse = regard.attention(q, k, v, return_lse=True)
        return (output**2).sum() + lse.sum()

    gradient = jax.grad(loss, (0, 1, 2))
    for one, wanted in zip(jax.jit(gradient)(q, k, v), gradient(q, k, v), strict=True):
        close(one, wanted)


def test_gradients_of_everything_under_jit_are_those_outside():
    q, k, v = normal((3, 6, 5, 11), (1, 3, 7, 11), (3, 3, 7, 13))
    options = {name: drawn(name, shape) for name, shape in EVERYTHING.items()}
    sinks, bias = options.pop("sinks"), options.pop("bias")

    def loss(q, k, v, bias, sinks):
        output, lse = regard.attention(
            q, k, v, bias=bias, sinks=sinks, **options,
            window=(3, 4), softcap=2.0, dropout=0.3, seed=5, return_lse=True,
        )  # fmt: skip
        return (output**2).sum() + lse.sum()

    gradient = jax.grad(loss, (0, 1, 2, 3, 4))
    inside, outside = (f(q, k, v, bias, sinks) for f in (jax.jit(gradient), gradient))
    for one, wanted in zip(inside, outside, strict=True):
        assert same(np.asarray(one), np.asarray(wanted))


def test_seeds_are_numbers_or_random_keys():
    q, k, v = normal((3, 6, 5, 11), *[(3, 3, 7, 11)] * 2)

    @jax.jit
    def attend(seed):
        return regard.attention(q, k, v, dropout=0.5, seed=seed)

    assert same(np.asarray(attend(5)), np.asarray(regard.attention(q, k, v, dropout=0.5, seed=5)))
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert np.array_equal(attend(key), attend(key))
        assert not np.array_equal(attend(key), attend(jax.random.split(key)[0]))
    mapped = jax.vmap(lambda x: regard.attention(x, k, v, dropout=0.5, seed=5))(jnp.stack([q, q]))
    assert np.array_equal(mapped[0], mapped[1]), "vmap is one call after the other"


def test_what_is_not_there_is_said():
    q, k, v = normal((3, 5, 11), *[(3, 5, 11)] * 2)
    with pytest.raises(TypeError, match="scale"):
        jax.jit(lambda scale: regard.attention(q, k, v, scale=scale))(0.5)
    with pytest.raises(TypeError, match=r"outside of jax\.jit"):
        jax.jit(lambda q: regard.look(q, k, v).output)(q)
    with pytest.raises(TypeError):
        jax.jvp(lambda q: regard.attention(q, k, v), (q,), (q,))
    bias = jnp.zeros((5, 5)).at[2, 3].set(jnp.nan)
    with pytest.raises(ValueError, match="bias"):
        regard.attention(q, k, v, bias=bias)
    spoilt = np.isnan(jax.jit(regard.attention)(q, k, v, bias=bias)).all((0, 2))
    assert spoilt.tolist() == [False, False, True, False, False]


# ------------------------------------------------------------------------- look, merge, memory


def test_look():
    q, k, v = normal((3, 6, 5, 11), *[(3, 3, 7, 11)] * 2)
    seen = regard.look(q, k, v, mask=jnp.arange(7) < 5)
    assert isinstance(seen.output, jax.Array)
    plain = regard.look(*map(np.asarray, (q, k, v)), mask=np.arange(7) < 5)
    assert same(seen.weights[...], plain.weights[...])
    assert same(np.asarray(seen.output), plain.output)


def test_merge():
    q, k, v = normal((3, 5, 11), (3, 7, 11), (3, 7, 13))

    def merged(q):
        whole, part = q[:, None], [x[:, None] for x in (k, v)]
        lengths = jnp.array([0, 2, 3])  # the first item has no key in its first part
        rest = jnp.broadcast_to(lengths[:, None], (3, 5)), jnp.full((3, 5), 7)
        a = regard.attention(whole, *part, key_lengths=lengths, return_lse=True)
        b = regard.attention(whole, *part, ranges=rest, return_lse=True)
        output, lse = regard.merge([a[0], b[0]], [a[1], b[1]])
        return output[:, 0], lse[:, 0]

    output, lse = jax.jit(merged)(q)
    wanted = regard.attention(q, k, v, return_lse=True)
    close(output, wanted[0])
    close(lse, wanted[1])
    gradient = jax.grad(lambda q: (merged(q)[0] ** 2).sum())(q)
    close(gradient, jax.grad(lambda q: (regard.attention(q, k, v) ** 2).sum())(q), more=3)


def test_arrays_are_read_where_they_lie():
    """Outside of jit nothing is copied on the way in, nor on the way out."""
    from regard.jax import op

    seen = []
    q, k, v = normal((2, 97, 8), *[(2, 89, 8)] * 2)
    original = op._numpy_forward

    def watching(given, count, *arrays, **rest):
        found = original(given, count, *arrays, **rest)
        seen.extend((*arrays, found[0]))
        return found

    op._numpy_forward = watching
    try:
        output = regard.attention(q, k, v)
    finally:
        op._numpy_forward = original
    places = [one.unsafe_buffer_pointer() for one in (q, k, v, output)]
    assert [one.ctypes.data for one in seen] == places


ALONE = """
import sys
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import regard
q, k, v = (jnp.asarray(x) for x in np.random.default_rng(0).standard_normal((3, 2, 5, 11)))
def loss(q): return (regard.attention(q, k, v, causal=True) ** 2).sum()
output = jax.jit(lambda q: regard.attention(q, k, v, causal=True))(q)
assert output.dtype == np.float64
truth = regard.steps(*map(np.asarray, (q, k, v)), causal=True).output
assert abs(output - truth).max() < 1e-13
grad, step = jax.jit(jax.grad(loss))(q), 1e-6 * jnp.ones_like(q)
assert abs((loss(q + step) - loss(q - step)) / 2 - (grad * step).sum()) < 1e-12
# On one core: a call back into NumPy must not wait for what waits for it.
big = jnp.ones((1, 4, 1024, 64), np.float32)
jax.jit(lambda x: regard.attention(x * 2, x, x) + 1)(big).block_until_ready()
print("done", sorted({"torch", "tensorflow", "keras"} & set(sys.modules)))
"""


def test_float64_and_one_core():
    command = [sys.executable, "-c", ALONE]
    if hasattr(os, "sched_setaffinity"):
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done []\n", done.stderr
