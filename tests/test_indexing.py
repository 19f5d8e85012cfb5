"""A view is indexed as NumPy indexes the same array, and computes no more than is asked for."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from regard.core import indexing, tiles
from regard.core.attention import look
from regard.core.indexing import mesh, positions_of, size_in_words

B, H, T, S, D = 2, 3, 5, 7, 3
NAMES = ("item", "head", "query", "key")


@pytest.fixture(scope="module")
def seen():
    rng = np.random.default_rng(0)
    query = rng.standard_normal((B, H, T, D))
    key, value = rng.standard_normal((2, B, 1, S, D))
    return look(query, key, value, causal=True, query_offset=1)


@pytest.fixture(scope="module")
def full(seen):
    return seen.weights[...]


def word(*positions):
    return SimpleNamespace(positions=positions)


INDICES = [
    (),
    0,
    -1,
    np.int32(1),
    np.array(1),
    ...,
    (0, 1, 2, 3),
    (-1, -2, -3, -4),
    (0, ..., 3),
    (..., 3),
    (..., slice(None, None, -1)),
    (slice(None), slice(None), slice(4, None, -2), slice(-3, None)),
    (0, 0, slice(3, 3)),
    (0, [2, 0, 0]),
    ([1, 0], [2, 1], [3, 3], [6, 0]),
    (..., [6, 0, 0, 3]),
    (0, ..., [1, 2], [3, 4]),
    (slice(None), [0, 2], ..., [1, 2], [3, 4]),
    (0, slice(None), [1, 2]),
    (slice(None), 0, slice(None), [1, 2, 5]),
    (slice(None), 0, [1, 2, 4]),
    ([[0], [1]], [0, 2]),
    (0, 0, *np.ix_([3, 1], [6, 2, 0])),
    (0, 0, np.eye(T, S, dtype=bool)),
    (..., np.tri(T, S, dtype=bool)),
    (slice(None), [True, False, True]),
    (np.zeros((B, H), bool),),
    (np.ones((B, H, T, S), bool),),
    (0, [], 1),
    (0, np.zeros((0, 3), int)),
    (slice(None), 1, [0, 1], slice(None, None, 2)),
    ([0, 1], slice(None), slice(None), [2, 3]),
]


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_as_numpy(seen, full, index):
    assert_array_equal(seen.weights[index], full[index])
    assert np.shape(seen.weights[index]) == np.shape(full[index])
    assert type(seen.weights[index]) is type(full[index])


@pytest.mark.parametrize("name", ["scores", "allowed", "baseline", "by_distance", "contribution"])
@pytest.mark.parametrize("index", INDICES[8:24:3], ids=range(6))
def test_other_views(seen, name, index):
    view = getattr(seen, name)
    assert_array_equal(view[index], view[...][index])


@st.composite
def indices(draw, shape=(B, H, T, S)):
    """Any mixture of what NumPy takes, for all axes or the first few."""
    common = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2).map(tuple))

    def integers(size):
        own = [draw(st.sampled_from([1, n])) for n in common]
        own = tuple(own[draw(st.integers(0, len(own))) :])
        flat = [draw(st.integers(-size, size - 1)) for _ in range(int(np.prod(own)))]
        return np.array(flat, np.intp).reshape(own)

    entries, axis = [], 0
    count = draw(st.integers(0, len(shape)))
    dots = draw(st.integers(-1, count))
    while axis < count:
        if axis == dots:
            entries.append(...)
            rest = draw(st.integers(0, len(shape) - count))
            axis, count = axis + rest, count + rest
            dots = -1
            continue
        size = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "bool"]))
        if kind == "int":
            entries.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            ends = st.none() | st.integers(-size - 2, size + 2)
            step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
            entries.append(slice(draw(ends), draw(ends), step))
        elif kind == "array" or len(common) > 1:
            entries.append(integers(size))
        else:
            wanted = common[0] if common else 1
            chosen = draw(st.permutations(range(size)))[: min(wanted, size)]
            entries.append(np.isin(np.arange(size), chosen))
        axis += 1
    return tuple(entries)


@settings(max_examples=400)
@given(index=indices(), small=st.booleans())
def test_any_index_is_as_numpys(seen, full, index, small):
    before = indexing.PAIRS, tiles.TILE_BYTES, indexing.TILE_BYTES
    if small:  # the same by many small steps
        indexing.PAIRS, tiles.TILE_BYTES, indexing.TILE_BYTES = 2, 64, 64
    try:
        try:
            expected = full[index]
        except IndexError:
            with pytest.raises(IndexError):
                seen.weights[index]
            return
        assert_array_equal(seen.weights[index], expected)
        assert np.shape(seen.weights[index]) == np.shape(expected)
    finally:
        indexing.PAIRS, tiles.TILE_BYTES, indexing.TILE_BYTES = before


def test_a_word_stands_for_its_positions_as_a_slice_does(seen, full):
    it, cat = word(2), word(1, 2, 5)
    assert_array_equal(seen.weights[0, 0, it], full[0, 0, 2:3])
    assert_array_equal(seen.weights[0, 0, it, cat], full[0, 0, [[2]], [1, 2, 5]])
    assert_array_equal(seen.weights[..., cat], full[..., [1, 2, 5]])
    assert_array_equal(seen.weights[0, 1, word(3, 4), word(4, 6)], full[0, 1, 3:5, 4::2])
    assert_array_equal(seen.mass(cat), full[..., [1, 2, 5]].sum(-1))
    assert seen.top(2, rows=it).positions.shape == (B, H, 1, 2)
    assert_array_equal(seen.without(cat).allowed[..., [1, 2, 5]], False)


def test_a_view_is_an_array_where_one_is_wanted(seen, full):
    assert_array_equal(np.asarray(seen.weights), full)
    assert np.asarray(seen.weights, dtype=np.float32).dtype == np.float32
    assert len(seen.weights) == B
    assert seen.weights.ndim == 4
    with pytest.raises(ValueError, match="computed when asked for"):
        np.array(seen.weights, copy=False)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "None .*take the part, then reshape"),
        ((0, None), "None"),
        ((..., 0, ...), "only one Ellipsis"),
        ((0, 0, 0, 0, 0), "too many indices: there are 4 axes, received 5"),
        ((0, 0, 5), "query: position 5 is outside of the axis of 5"),
        ((0, 0, 0, [1, -8]), "key: position -8 is outside of the axis of 7"),
        ((0, 0, 0, word(9)), "key: position 9"),
        (1.5, "received 1.5"),
        ("it", "ints, slices, Words.*received 'it'"),
        (True, "received True"),
        ([0.5], "received"),
        ((0, np.ones(4, bool)), r"head: a boolean index takes the shape of its axes, \(3,\)"),
        (([0, 1], [0, 1, 2]), r"index arrays do not broadcast to one shape: \(2,\) and \(3,\)"),
    ],
)
def test_refusals(seen, index, words):
    with pytest.raises(IndexError, match=words):
        seen.weights[index]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (-1, 6),
        (slice(1, 6, 2), [1, 3, 5]),
        ([4, 4, 0], [4, 4, 0]),
        ((4, 0), [4, 0]),
        (range(2), [0, 1]),
        (word(2, 5), [2, 5]),
        (np.arange(S) > 4, [5, 6]),
        ([], []),
    ],
)
def test_positions(value, expected):
    assert positions_of(value, S, "keys").tolist() == expected


@pytest.mark.parametrize("value", [None, ..., "it", 1.5, [[1]], True, (slice(1), 2)])
def test_what_is_no_position(value):
    with pytest.raises(IndexError):
        positions_of(value, S, "keys")


def test_a_scattered_index_computes_little(monkeypatch):
    """A handful of far keys never costs all the keys between them."""
    computed = []
    tile = tiles.Part.tile

    def counted(part, what, rows, keys):
        computed.append((rows.stop - rows.start) * (keys.stop - keys.start))
        return tile(part, what, rows, keys)

    monkeypatch.setattr(tiles.Part, "tile", counted)
    size = 8192
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, size, 2)).astype(np.float32)
    seen = look(query, key, value)
    keys = rng.choice(size, 9, replace=False)
    assert seen.weights[..., keys].shape == (1, size, 9)
    assert sum(computed) <= size * 9 * 64
    assert max(computed) * 4 <= tiles.TILE_BYTES
    computed.clear()
    rows = rng.choice(size, 9, replace=False)
    assert seen.weights[0, rows, keys].shape == (9,)
    assert sum(computed) <= 9 * 9 * indexing.CHEAP
    computed.clear()
    assert seen.weights[0, ::1024, ::1024].shape == (8, 8)
    assert sum(computed) <= indexing.CHEAP * 64


def test_mesh_keeps_what_numpy_keeps():
    coordinates, shape = mesh((slice(None), [[0], [1]], slice(1, 3)), (2, 3, 5, 7), NAMES)
    assert shape == np.empty((2, 3, 5, 7))[:, [[0], [1]], 1:3].shape
    assert np.broadcast_shapes(*(c.shape for c in coordinates)) == shape


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (9 << 40, "9.0 TiB"),
    ],
)
def test_sizes_in_words(size, words):
    assert size_in_words(size) == words
