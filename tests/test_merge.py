"""Attention over parts of the keys, merged, is attention over all of them."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from cases import normal
from near import floats, same

import regard

pytestmark = pytest.mark.usefixtures("kernel")


@floats
@pytest.mark.parametrize("cuts", [[20], [0, 41], [1, 2, 3, 30], [13, 13, 13], list(range(1, 41))])
def test_merged_parts_are_the_whole(cuts, dtype):
    q, k, v = normal(29, (2, 6, 23, 16), (2, 3, 41, 16), (2, 3, 41, 16), dtype=dtype)
    mask = np.random.default_rng(7).random((2, 1, 23, 41)) < 0.5
    mask[:, :, 3] = False
    mask[:, :, 4, 20:] = False
    judge = regard.steps(q, k, v, mask=mask)
    edges = [0, *cuts, 41]
    parts = [
        regard.attention(q, k[..., a:b, :], v[..., a:b, :], mask=mask[..., a:b], return_lse=True)
        for a, b in pairwise(edges)
    ]
    for order in (parts, parts[::-1]):
        output, lse = regard.merge(*zip(*order, strict=True))
        assert output.dtype == dtype
        assert lse.dtype == parts[0][1].dtype
        # Each part is rounded once more than the whole.
        eps = float(ml_dtypes.finfo(dtype).eps)
        wide = float(ml_dtypes.finfo(lse.dtype).eps)
        np.testing.assert_allclose(output.astype(float), judge.output, atol=8 * eps)
        np.testing.assert_allclose(lse, judge.lse, rtol=8 * wide, atol=8 * wide)


def test_merging_with_itself_changes_nothing_but_lse():
    output, lse = regard.attention(
        *normal(30, (6, 23, 16), (3, 41, 16), (3, 41, 16)), return_lse=True
    )
    twice, more = regard.merge([output, output], [lse, lse])
    np.testing.assert_allclose(twice, output, rtol=1e-6)
    np.testing.assert_allclose(more, lse + np.log(2), rtol=1e-6)


def test_parts_without_keys_are_the_identity():
    output, lse = regard.attention(
        *normal(31, (6, 23, 16), (3, 41, 16), (3, 41, 16)), return_lse=True
    )
    nothing = np.full_like(output, np.nan), np.full_like(lse, -np.inf)
    found = regard.merge([nothing[0], output, nothing[0]], [nothing[1], lse, nothing[1]])
    np.testing.assert_allclose(found[0], output, rtol=1e-6)
    assert same(found[1], lse)
    empty = regard.merge([nothing[0]] * 2, [nothing[1]] * 2)
    assert not empty[0].any()
    assert (empty[1] == -np.inf).all()


def test_merge_of_large_scores_and_one_sink():
    q, k, v = normal(32, (6, 23, 16), (3, 41, 16), (3, 41, 16))
    q *= 300
    sinks = np.linspace(-500, 500, 6)
    judge = regard.steps(q, k, v, sinks=sinks)
    left = regard.attention(q, k[:, :9], v[:, :9], sinks=sinks, return_lse=True)
    right = regard.attention(q, k[:, 9:], v[:, 9:], return_lse=True)
    output, lse = regard.merge([left[0], right[0]], [left[1], right[1]])
    # An lse near 1000 is rounded to 3e-5.
    np.testing.assert_allclose(output, judge.output, atol=5e-4)
    np.testing.assert_allclose(lse, judge.lse, rtol=1e-6)


def test_merge_of_a_single_row():
    parts = [np.array([1.0, 2.0]), np.array([3.0, 4.0])], [np.float64(0), np.float64(0)]
    output, lse = regard.merge(*parts)
    assert output.tolist() == [2, 3]
    assert lse == np.log(2)


def test_merge_refuses():
    output, lse = np.zeros((2, 5, 3)), np.zeros((2, 5))
    with pytest.raises(ValueError, match=r"at least one part.*0 and 0"):
        regard.merge([], [])
    with pytest.raises(ValueError, match="1 and 2"):
        regard.merge([output], [lse, lse])
    with pytest.raises(ValueError, match=r"\(2, 5, 3\) and \(5, 2\)"):
        regard.merge([output], [lse.T])
    with pytest.raises(ValueError, match=r"\(2, 4, 3\)"):
        regard.merge([output, output[:, :4]], [lse, lse[:, :4]])
    with pytest.raises(TypeError, match="one dtype"):
        regard.merge([output, output.astype(np.float32)], [lse, lse])
    with pytest.raises(TypeError, match=r"outputs.*int64"):
        regard.merge([output.astype(int)], [lse])
