"""Every wrong call is refused, in words that name the argument and hold all shapes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.core.call import check

# The call that all wrong ones here are variations of.
ARRAYS = {
    "query": np.zeros((2, 6, 5, 7), np.float32),
    "key": np.zeros((2, 3, 11, 7), np.float32),
    "value": np.zeros((2, 3, 11, 13), np.float32),
}
Q, K, V = ARRAYS.values()


def like(name: str, *shape: int, dtype=np.float32) -> dict:
    return {name: np.zeros(shape, dtype)}


# What is wrong, and what the message must hold beside the argument's name.
TYPES = {
    "query": [
        ({"query": Q.astype(int)}, "int64"),
        ({"query": Q.astype(bool)}, "bool"),
        ({"query": Q.astype(complex)}, "complex128"),
        ({"query": Q.astype(np.longdouble)}, str(np.dtype(np.longdouble))),
        ({"query": Q.astype(object)}, "object"),
        ({"query": Q.astype(ml_dtypes.float8_e4m3fn)}, "float8_e4m3fn"),
        ({"query": Q.astype("U1")}, "<U1"),
        ({"query": None}, "object"),
        ({"query": [[1, 2]]}, "list of int64"),
        ({"query": [[1.0], [1.0, 2.0]]}, "list"),
        ({"query": np.zeros(3, [("a", "f4")])}, "'a'"),
        ({"query": Q.astype(np.float64)}, "float64, float32 and float32"),
    ],
    "key": [({"key": K.astype(np.int32)}, "int32"), ({"key": K.astype("f2")}, "float16")],
    "value": [({"value": np.ma.array(V)}, "masked array"), ({"value": V > 0}, "bool")],
    "mask": [
        ({"mask": np.ones((5, 11))}, "float64"),
        ({"mask": np.ones((5, 11), int)}, "int64"),
        ({"mask": [1, 0] * 5 + [1]}, "list of int64"),
        ({"mask": np.ma.array(np.ones(11, bool))}, "masked array"),
    ],
    "bias": [
        ({"bias": np.ones((5, 11), bool)}, "mask="),
        ({"bias": np.ones((5, 11), int)}, "int64"),
        ({"bias": np.ones((5, 11), complex)}, "complex128"),
        ({"bias": "none"}, "<U4"),
    ],
    "causal": [({"causal": 1}, "received 1"), ({"causal": "yes"}, "'yes'")],
    "window": [
        ({"window": 3}, "received 3"),
        ({"window": (1, 2, 3)}, "(1, 2, 3)"),
        ({"window": (1.5, 0)}, "1.5"),
        ({"window": (True, 0)}, "True"),
        ({"window": "12"}, "'12'"),
    ],
    "query_offset": [
        ({"query_offset": 1.0}, "float64"),
        ({"query_offset": [1.0, 2.0]}, "list of float64"),
        ({"query_offset": True}, "True"),
        ({"query_offset": ["1", "2"]}, "<U1"),
    ],
    "key_lengths": [
        ({"key_lengths": [1.0, 2.0]}, "float64"),
        ({"key_lengths": [True, True]}, "bool"),
        ({"key_lengths": [[1, 2], [3]]}, "list"),
    ],
    "segments": [
        ({"segments": (np.zeros(5), np.zeros(11))}, "float64"),
        ({"segments": (np.zeros(5, int), np.zeros(11, bool))}, "bool"),
    ],
    "ranges": [
        ({"ranges": 3}, "received 3"),
        ({"ranges": (1, 2, 3)}, "(1, 2, 3)"),
        ({"ranges": (0, 1.5)}, "float64"),
    ],
    "softcap": [({"softcap": "1"}, "'1'"), ({"softcap": True}, "True"), ({"softcap": 1j}, "1j")],
    "sinks": [({"sinks": np.zeros(6, int)}, "int64"), ({"sinks": [0] * 6}, "list of int64")],
    "scale": [({"scale": "1"}, "'1'"), ({"scale": np.True_}, "True"), ({"scale": [1.0]}, "[1.0]")],
    "dropout": [({"dropout": "0.1", "seed": 1}, "'0.1'"), ({"dropout": None, "seed": 1}, "None")],
    "seed": [({"dropout": 0.1, "seed": 1.0}, "1.0"), ({"seed": "1"}, "'1'")],
}

VALUES = {
    "window": [({"window": (-1, 0)}, "(-1, 0)"), ({"window": (0, -3)}, "(0, -3)")],
    "key_lengths": [
        ({"key_lengths": [3, 12]}, "12"),
        ({"key_lengths": -1}, "-1"),
        ({"key_lengths": np.array([1, 2**64 - 1], np.uint64)}, "18446744073709551615"),
    ],
    "ranges": [({"ranges": (0, 12)}, "12"), ({"ranges": ([-1] * 5, 3)}, "-1")],
    "softcap": [({"softcap": x}, str(x)) for x in (0, -1.5, np.inf, np.nan)],
    "scale": [({"scale": x}, str(x)) for x in (np.inf, -np.inf, np.nan)],
    "dropout": [({"dropout": x, "seed": 1}, str(x)) for x in (1, -0.1, 1.5, np.nan)],
    "seed": [
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"dropout": 0.1, "seed": 2**64}, str(2**64)),
    ],
    "precision": [({"precision": "low"}, "'low'"), ({"precision": None}, "None")],
}

SHAPES = {
    "query": [
        (like("query", 7), "axes"),
        (like("query", 6, 5, 7), "axes"),
        (like("query", 2, 6, 5, 8), "width"),
        (like("query", 2, 5, 5, 7), "received 5 and 3"),
        (like("query", 2, 4, 5, 7), "multiple"),
        (like("query", 4, 6, 5, 7), "batch"),
    ],
    "key": [
        (like("key", 2, 3, 11, 8), "width"),
        (like("key", 3, 11, 7), "axes"),
        (like("key", 3, 3, 11, 7), "batch"),
        (like("key", 2, 0, 11, 7) | like("value", 2, 0, 11, 13), "multiple"),
        (like("key", 2, 3, 11, 0) | like("query", 2, 6, 5, 0), "at least 1"),
    ],
    "value": [
        (like("value", 2, 3, 12, 13), "keys"),
        (like("value", 2, 3, 10, 13), "keys"),
        (like("value", 2, 6, 11, 13), "heads"),
        (like("value", 2, 1, 11, 13), "heads"),
        (like("value", 11, 13), "axes"),
    ],
    "mask": [
        (like("mask", 5, 12, dtype=bool), "broadcasts to (2, 6, 5, 11), received (5, 12)"),
        (like("mask", 1, 2, 6, 5, 11, dtype=bool), "received (1, 2, 6, 5, 11)"),
        (like("mask", 2, 5, 11, dtype=bool), "write mask[:, None]."),
        (like("mask", 2, 11, dtype=bool), "write mask[:, None, None]."),
        (like("mask", 3, 5, 11, dtype=bool), "received (3, 5, 11)"),
    ],
    "bias": [
        (like("bias", 5, 10), "received (5, 10)"),
        (like("bias", 2, 5, 11), "write bias[:, None]."),
    ],
    "query_offset": [
        ({"causal": True}, "query_offset=6"),
        ({"window": (1, 0)}, "5) is not that of the keys (11)"),
        ({"window": (None, None)}, "libraries disagree"),
        ({"query_offset": [1, 2, 3]}, "(B…) = (2,), received (3,)"),
        ({"query_offset": [[1], [2]]}, "received (2, 1)"),
    ],
    "key_lengths": [({"key_lengths": [1, 2, 3]}, "(B…) = (2,), received (3,)")],
    "segments": [
        ({"segments": np.zeros(5, int)}, "5 queries and 11 keys"),
        ({"segments": (np.zeros(11, int), np.zeros(5, int))}, "(B…, T) = (2, 5), received (11,)"),
        ({"segments": (np.zeros(5, int), np.zeros((3, 11), int))}, "(B…, S) = (2, 11)"),
    ],
    "ranges": [
        ({"ranges": (np.zeros(11, int), 3)}, "(B…, T) = (2, 5), received (11,)"),
        ({"ranges": (0, np.zeros((3, 5), int))}, "received (3, 5)"),
    ],
    "sinks": [
        (like("sinks", 3), "(H,) = (6,), received (3,)"),
        (like("sinks", 2, 6), "received (2, 6)"),
        ({"sinks": np.float32(1)}, "received ()"),
    ],
}


def listed(table: dict) -> pytest.MarkDecorator:
    wrong = [(name, change, said) for name, rows in table.items() for change, said in rows]
    return pytest.mark.parametrize(("name", "change", "said"), wrong)


def refusal(error: type[Exception], change: dict) -> str:
    """The message of all three calls that take the same arguments; it is one and the same."""
    arrays = [change.get(name, array) for name, array in ARRAYS.items()]
    options = {name: x for name, x in change.items() if name not in ARRAYS}
    with pytest.raises(error) as first:
        regard.attention(*arrays, **options)
    if not {"dropout", "seed"} & set(change):
        with pytest.raises(error) as second:
            regard.look(*arrays, **options)
        assert str(second.value) == str(first.value)
    assert type(first.value) is error
    return str(first.value)


@listed(TYPES)
def test_wrong_types(name, change, said):
    message = refusal(TypeError, change)
    assert name in message.split(":")[0]
    assert "expected" in message
    assert said in message


@listed(VALUES)
def test_wrong_numbers(name, change, said):
    message = refusal(ValueError, change)
    assert message.startswith(f"{name}: expected ")
    assert said in message


@listed(SHAPES)
def test_wrong_shapes(name, change, said):
    message = refusal(ValueError, change)
    assert name in message.split(":")[0]
    assert "expected" in message
    assert said in message
    # All shapes are said, those of what was given besides too.
    for argument, array in (ARRAYS | change).items():
        if isinstance(array, np.ndarray):
            assert f"{argument} {array.shape}" in message
    pair = change.get("segments", change.get("ranges"))
    if isinstance(pair, tuple):
        assert f"{np.shape(pair[0])} and {np.shape(pair[1])}" in message


def test_a_mask_that_could_mean_two_things():
    arrays = [np.zeros((6, 6, 5, 7)), np.zeros((6, 3, 11, 7)), np.zeros((6, 3, 11, 13))]
    for name, dtype in (("mask", bool), ("bias", float)):
        with pytest.raises(ValueError, match=rf"{name}\[None\] for heads, {name}\[:, None\]"):
            check(*arrays, **like(name, 6, 5, 11, dtype=dtype))
        for shape in ((1, 5, 11), (1, 6, 5, 11), (6, 1, 5, 11), (5, 11), (6, 6, 1, 11), (11,), ()):
            check(*arrays, **like(name, *shape, dtype=dtype))
    # One head or one item: there is nothing to confuse.
    check(Q[:1], K[:1], V[:1], **like("mask", 6, 5, 11, dtype=bool))
    check(Q[:, :1], K[:, :1], V[:, :1], **like("mask", 1, 5, 11, dtype=bool))
    with pytest.raises(ValueError, match=r"mask\[:, None\]"):
        check(Q[:, :1], K[:, :1], V[:, :1], **like("mask", 2, 5, 11, dtype=bool))


def test_a_mask_may_not_add_axes():
    q, k, v = Q[0, 0], K[0, 0], V[0, 0]
    check(q, k, v, **like("mask", 5, 11, dtype=bool))
    with pytest.raises(ValueError, match=r"\(1, 5, 11\)"):
        check(q, k, v, **like("mask", 1, 5, 11, dtype=bool))


def test_more_axes_than_can_be():
    deep = np.zeros((1,) * 31 + (2, 3))
    with pytest.raises(ValueError, match="2 to 32"):
        check(deep, deep, deep)


# ------------------------------------------------------------------------------------- anything


@st.composite
def soups(draw):
    """Arguments that may or may not fit together: mostly nearly right, sometimes nonsense."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = {name: draw(st.sampled_from([0, 1, 2, 3, 5, 7])) for name in "BGTSV"}
    sizes |= {"H": sizes["G"] * int(random.integers(1, 4)), "D": int(random.choice([1, 3, 8]))}

    def size(name):
        return sizes[name] if random.random() < 0.99 else int(random.integers(0, 8))

    def array(axes, kind):
        shape = [size(name) for name in axes][int(random.random() < 0.01) :]
        numbers = random.integers(-2, 9, shape)
        if kind == "int":
            return numbers if random.random() < 0.1 else numbers.clip(0, sizes["S"])
        if kind == "bool":
            return numbers > 0
        return numbers.astype(random.choice(["f4"] * 97 + ["f2", "f8", "i4"]))

    lead = draw(st.sampled_from(["", "B", "BB"]))
    arrays = [array(lead + axes, "float") for axes in ("HTD", "GSD", "GSV")]
    some = {
        "mask": lambda: array(random.choice([lead + "HTS", "HTS", "TS", "S", lead + "S"]), "bool"),
        "bias": lambda: array(random.choice([lead + "HTS", "HTS", "TS", "S", lead + "S"]), "float"),
        "causal": lambda: bool(random.random() < 0.9) or "yes",
        "window": lambda: (int(random.integers(-1, 9)), None),
        "query_offset": lambda: random.choice([0, 3, -9, 10**30]),
        "key_lengths": lambda: array(lead, "int"),
        "segments": lambda: (array(lead + "T", "int"), array(lead + "S", "int")),
        "ranges": lambda: (array(lead + "T", "int"), array(lead + "T", "int")),
        "softcap": lambda: random.choice([-1, 0, 3.0, 3.0, 20.0]),
        "sinks": lambda: array("H", "float"),
        "scale": lambda: random.choice([0, 1, -2.5, 0.3, np.nan]),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(some)), max_size=3))
    if random.random() < 0.8 and chosen & {"causal", "window"}:
        chosen.add("query_offset")
    return arrays, {name: some[name]() for name in sorted(chosen)}


@settings(max_examples=400)
@given(soups())
def test_soup(soup):
    # Whatever comes in: an answer, the textbook's, or a refusal in words; from `look` the same.
    arrays, options = soup
    try:
        output = regard.attention(*arrays, **options)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error), match=": expected "):
            regard.look(*arrays, **options)
        return
    judge = regard.steps(*arrays, **options)
    assert output.shape == judge.output.shape
    np.testing.assert_allclose(output, judge.output, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(
        regard.look(*arrays, **options).weights[...], judge.weights, atol=2e-5
    )
