"""Dropout: which weights it drops, and that kernel and textbook drop the same ones."""

import numpy as np
import pytest
from cases import normal
from near import floats, judged, same

import regard
from regard.core.dropout import multipliers, philox

# The known answers that Random123 publishes: counter, key, words.
KNOWN = """
00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""


@pytest.mark.parametrize("line", KNOWN.strip().splitlines())
def test_philox(line):
    words = [int(word, 16) for word in line.split()]
    counter = [np.uint64(word) for word in words[:4]]
    assert [int(x) for x in philox(counter, (words[4], words[5]))] == words[6:]


def test_dropout_depends_on_the_place_and_the_seed_alone():
    whole = multipliers((2, 3, 5, 7, 11), 0.3, 12345)
    assert np.array_equal(multipliers((2, 3, 5, 7, 6), 0.3, 12345), whole[..., :6])
    assert np.array_equal(multipliers((6, 5, 7, 11), 0.3, 12345), whole.reshape(6, 5, 7, 11))
    assert not np.array_equal(multipliers((2, 3, 5, 7, 11), 0.3, 12346), whole)
    assert not np.array_equal(multipliers((2, 3, 5, 7, 11), 0.3, 12345 + 2**32), whole)
    assert set(np.unique(whole)) == {0, 1 / 0.7}
    assert (multipliers((100, 100, 1, 100), 0.3, 1) == 0).mean() == pytest.approx(0.3, abs=0.002)


def test_dropout_comes_after_the_softmax():
    q, k, v = normal(5, (2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7))
    steps, plain = regard.steps(q, k, v, dropout=0.5, seed=3), regard.steps(q, k, v)
    assert np.array_equal(steps.weights, plain.weights)
    assert np.array_equal(steps.lse, plain.lse)
    np.testing.assert_allclose(steps.output, regard.combine(plain.weights * steps.kept, v))


@pytest.mark.usefixtures("kernel")
@floats
@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, 2**64 - 1, -5])
def test_dropout_drops_what_the_textbook_drops(seed, dtype):
    q, k, v = normal(27, (2, 2, 6, 13, 16), (2, 2, 3, 29, 16), (2, 2, 3, 29, 16), dtype=dtype)
    options = {"dropout": 0.4, "seed": seed, "causal": True, "query_offset": 16}
    judged(q, k, v, **options)
    # With a value of its own for each key, the output is the pattern itself.
    kept = regard.attention(
        0 * q,
        k,
        np.broadcast_to(np.eye(29, dtype=dtype), (2, 2, 3, 29, 29)),
        dropout=0.4,
        seed=seed,
    )
    assert np.array_equal(kept != 0, regard.steps(0 * q, k, v, dropout=0.4, seed=seed).kept != 0)


@pytest.mark.usefixtures("kernel")
def test_dropout_leaves_lse_alone():
    q, k, v = normal(28, (6, 13, 16), (3, 29, 16), (3, 29, 16))
    _, expected = regard.attention(q, k, v, return_lse=True)
    _, lse = regard.attention(q, k, v, dropout=0.9, seed=1, return_lse=True)
    assert same(lse, expected)
