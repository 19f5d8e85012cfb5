"""Every argument alone, in pairs and in handfuls, on calls of any shape, judged by the textbook."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near import FLOATS, judged

import regard

pytestmark = pytest.mark.usefixtures("kernel")

ARGUMENTS = [
    "mask", "bias", "causal", "window", "query_offset", "key_lengths", "segments", "ranges",
    "softcap", "sinks", "scale", "dropout",
]  # fmt: skip

# Sizes are distinct primes, so that swapped axes cannot pass, and cross the edges of tiles.
BATCHES = [(), (1,), (2,), (3, 2)]
GROUPS = [(1, 1), (2, 2), (6, 3), (5, 1)]
QUERIES = [1, 2, 13, 47, 61]
KEYS = [1, 3, 11, 43, 67, 149]
WIDTHS = [1, 5, 16, 29, 64]
VALUE_WIDTHS = [1, 7, 16, 37, 64]


class Random:
    """The arrays of a call, drawn from one seed, with any of the arguments."""

    def __init__(self, seed, dtype, batch, heads, rows, keys, width=16, value_width=7, single=()):
        self.random = np.random.default_rng(seed)
        self.batch, self.rows, self.keys, self.heads = batch, rows, keys, heads[0]
        # Batch axes that a key or value does not have to itself.
        own = tuple(1 if axis in single else n for axis, n in enumerate(batch))
        self.arrays = [
            self.normal(*lead, number, length, wide).astype(dtype)
            for lead, number, length, wide in (
                (batch, heads[0], rows, width),
                (own, heads[1], keys, width),
                (batch, heads[1], keys, value_width),
            )
        ]

    def normal(self, *shape):
        return self.random.standard_normal(shape)

    def broadcastable(self, *shape):
        """A shape that broadcasts to this one: axes of 1, and leading ones left out."""
        if len(shape) == 4 and shape[0] == shape[1]:
            return shape  # three axes could mean two things
        some = [n if self.random.random() < 0.7 else 1 for n in shape]
        return tuple(some[self.random.integers(0, len(some)) :])

    def pair(self):
        return tuple(
            None if self.random.random() < 0.25 else int(self.random.integers(0, 20))
            for _ in range(2)
        )

    def option(self, name):
        random, full = self.random, (*self.batch, self.heads, self.rows, self.keys)
        if name == "mask":
            return random.random(self.broadcastable(*full)) < random.choice([0.1, 0.7, 0.98])
        if name == "bias":
            bias = 2 * self.normal(*self.broadcastable(*full))
            bias[random.random(bias.shape) < random.choice([0, 0.3])] = -np.inf
            return bias.astype(FLOATS[random.integers(4)])
        if name in ("query_offset", "key_lengths"):
            shape = self.batch if random.random() < 0.5 else ()
            low, high = (-9, self.keys) if name == "query_offset" else (0, self.keys + 1)
            return random.integers(low, high, shape)
        if name == "ranges":
            ends = random.integers(0, self.keys + 1, (2, *self.batch, self.rows))
            return tuple(np.sort(ends, axis=0) if random.random() < 0.8 else ends)
        if name == "segments":
            pair = [random.integers(0, 4, (*self.batch, n)) for n in (self.rows, self.keys)]
            return tuple(np.sort(x) if random.random() < 0.5 else x for x in pair)
        values = {
            "causal": True,
            "window": self.pair(),
            "softcap": float(random.choice([0.7, 5, 50])),
            "sinks": 2 * self.normal(self.heads),
            "scale": float(random.choice([-1, 0, 0.3, 1])),
            "dropout": float(random.choice([0.1, 0.5])),
        }
        return values[name]

    def options(self, names):
        options = {name: self.option(name) for name in names}
        if {"causal", "window"} & set(names):
            options.setdefault("query_offset", self.option("query_offset"))
        if "dropout" in names:
            options["seed"] = int(self.random.integers(2**63))
        return options


pairs = [*((name,) for name in ARGUMENTS), *itertools.combinations(ARGUMENTS, 2)]


@pytest.mark.parametrize("names", pairs, ids="-".join)
def test_each_argument_alone_and_in_pairs(names):
    for number, dtype in enumerate(FLOATS):
        call = Random(number, dtype, (2,), (6, 3), 13, 67)
        judged(*call.arrays, **call.options(names))


@st.composite
def calls(draw, dtypes=FLOATS):
    batch = draw(st.sampled_from(BATCHES))
    heads, rows, keys = (draw(st.sampled_from(x)) for x in (GROUPS, QUERIES, KEYS))
    width, value_width = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(VALUE_WIDTHS))
    single = draw(st.sets(st.integers(0, 1)))
    dtype = draw(st.sampled_from(dtypes))
    return Random(
        draw(st.integers(0, 2**32)), dtype, batch, heads, rows, keys, width, value_width, single
    )


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), names=st.sets(st.sampled_from(ARGUMENTS), max_size=6))
def test_any_arguments_on_any_shape(kernel, call, names):
    judged(*call.arrays, **call.options(sorted(names)))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), names=st.sets(st.sampled_from(ARGUMENTS), max_size=3), data=st.data())
def test_split_keys_and_merge(kernel, call, names, data):
    names = sorted(names - {"dropout", "segments", "ranges", "key_lengths"})
    options = call.options(names)
    allowed = regard.steps(*call.arrays, **options).allowed
    q, k, v = call.arrays
    cut = data.draw(st.integers(0, call.keys))
    keep = {name: options[name] for name in ("softcap", "scale") if name in options}
    parts = []
    for part, sinks in ((np.s_[:cut], options.get("sinks")), (np.s_[cut:], None)):
        bias = options.get("bias")
        if bias is not None:
            bias = np.broadcast_to(bias, allowed.shape)[..., part]
        parts.append(
            regard.attention(
                q, k[..., part, :], v[..., part, :], mask=allowed[..., part], bias=bias,
                sinks=sinks, return_lse=True, **keep,
            )
        )  # fmt: skip
    output, lse = regard.merge(*zip(*parts, strict=True))
    judge = regard.steps(*call.arrays, **options)
    eps = float(ml_dtypes.finfo(q.dtype).eps)
    largest = max(1.0, float(np.abs(v.astype(float)).max()))
    np.testing.assert_allclose(output.astype(float), judge.output, atol=64 * eps * largest)
    wide = 1e-11 if q.dtype == np.float64 else 2e-5
    np.testing.assert_allclose(lse, judge.lse, rtol=wide, atol=wide)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), names=st.sets(st.sampled_from(ARGUMENTS), max_size=3))
def test_an_item_alone_has_the_same_bits(kernel, call, names):
    if len(call.batch) != 1:
        return
    options = call.options(sorted(names - {"dropout"}))
    q, k, v = call.arrays
    whole = regard.attention(q, k, v, **options)
    # As a call without batch axes, with its own part of each argument.
    dense = {"mask": 3, "bias": 3, "query_offset": 0, "key_lengths": 0}
    for i in range(call.batch[0]):

        def own(x, axes, i=i):
            x = np.asarray(x)
            return x if x.ndim <= axes else x[i if len(x) > 1 else 0]

        mine = {name: own(options[name], axes) for name, axes in dense.items() if name in options}
        for name in ("segments", "ranges"):
            if name in options:
                mine[name] = tuple(own(x, 1) for x in options[name])
        alone = regard.attention(own(q, 3), own(k, 3), own(v, 3), **options | mine)
        assert alone.tobytes() == whole[i].tobytes()
