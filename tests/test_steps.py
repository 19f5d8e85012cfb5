"""The textbook: the mission's numbers, every step, and how it is written out."""

import html
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cases import CASES, normal

import regard

QUERY = [[1, 0]]
KEYS = [[1, 0], [0, 1], [1, 1]]
VALUES = [[10, 0], [0, 20], [30, 30]]


# --------------------------------------------------------------- numbers that follow from others


def test_a_weighted_sum():
    assert regard.combine([0.2, 0.5, 0.3], [10, 20, 30]) == 21
    assert str(regard.combine([0.2, 0.5, 0.3], [10, 20, 30])) == "21.0"


def test_weights_of_a_sentence_add_up_to_one():
    the, cat, sat, on, the_mat, mat = 0.05, 0.55, 0.15, 0.05, 0.05, 0.15
    assert math.fsum([the, cat, sat, on, the_mat, mat]) == 1


def test_softmax_of_three_scores():
    weights = regard.softmax([2.0, 1.0, 0.5])
    assert [f"{w:.2f}" for w in weights] == ["0.63", "0.23", "0.14"]
    assert weights.sum() == pytest.approx(1, abs=1e-15)


def test_dot_products():
    assert regard.scores([1, 0], [1, 0]) == 1
    assert regard.scores([1, 0], [0, 1]) == 0
    assert regard.scores([1, 0], KEYS).tolist() == [1, 0, 1]
    assert regard.scores(QUERY, KEYS).tolist() == [[1, 0, 1]]


def test_the_whole_example():
    steps = regard.steps(QUERY, KEYS, VALUES, scale=1)
    assert steps.scores.tolist() == [[1, 0, 1]]
    total = 2 * math.e + 1
    np.testing.assert_allclose(steps.weights, [[math.e / total, 1 / total, math.e / total]])
    np.testing.assert_allclose(steps.output, [[40 * math.e / total, (20 + 30 * math.e) / total]])
    assert steps.weights[0, 0] == steps.weights[0, 2] > steps.weights[0, 1]
    one_by_one = regard.combine(regard.softmax(regard.scores(QUERY, KEYS)), VALUES)
    np.testing.assert_allclose(steps.output, one_by_one)


def test_the_scale_is_that_of_the_width():
    steps = regard.steps(QUERY, KEYS, VALUES)
    np.testing.assert_allclose(steps.scaled, steps.scores / math.sqrt(2))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    # What the answers were computed from is exactly what the textbook gets; they have 12 digits.
    steps = regard.steps(*case.inputs, **case.options)
    np.testing.assert_allclose(steps.output, case.answer("output"), rtol=1e-11, atol=1e-12)
    if steps.weights.size < 1000:
        np.testing.assert_allclose(steps.weights, case.answer("weights"), rtol=1e-11, atol=1e-12)


# ------------------------------------------------------------------------------------ each step


def test_every_step():
    q, k, v = normal(1, (2, 6, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13), dtype=np.float64)
    bias, sinks = normal(2, (5, 11), (6,), dtype=np.float64)
    bias[0, 3] = -np.inf
    mask = np.arange(11) != 9
    steps = regard.steps(q, k, v, softcap=2, bias=bias, sinks=sinks, mask=mask, scale=0.7)
    b, h, t, s = 1, 4, 0, 6  # query head 4 reads key head 2
    bare = math.fsum(q[b, h, t] * k[b, 2, s])
    assert steps.scores[b, h, t, s] == pytest.approx(bare)
    assert steps.scaled[b, h, t, s] == pytest.approx(bare * 0.7)
    assert steps.capped[b, h, t, s] == pytest.approx(2 * math.tanh(bare * 0.7 / 2))
    assert steps.biased[b, h, t, s] == steps.capped[b, h, t, s] + bias[t, s]
    assert steps.allowed[b, h, t].tolist() == [j not in (3, 9) for j in range(11)]
    powers = [
        math.exp(x)
        for x, seen in zip(steps.biased[b, h, t], steps.allowed[b, h, t], strict=True)
        if seen
    ]
    total = math.fsum([*powers, math.exp(sinks[h])])
    assert steps.lse[b, h, t] == pytest.approx(math.log(total))
    assert steps.sink[b, h, t] == pytest.approx(math.exp(sinks[h]) / total)
    assert steps.weights[b, h, t, s] == pytest.approx(math.exp(steps.biased[b, h, t, s]) / total)
    np.testing.assert_allclose(steps.weights.sum(-1) + steps.sink, 1)
    np.testing.assert_allclose(steps.terms[b, h, t, s], steps.weights[b, h, t, s] * v[b, 2, s])
    np.testing.assert_allclose(steps.terms.sum(-2), steps.output)


def test_shapes():
    q, k, v = normal(3, (2, 1, 4, 5, 7), (1, 3, 2, 11, 7), (2, 3, 2, 11, 13))
    steps = regard.steps(q, k, v)
    for name in ("scores", "scaled", "capped", "biased", "allowed", "weights", "kept"):
        assert getattr(steps, name).shape == (2, 3, 4, 5, 11), name
    assert steps.lse.shape == steps.sink.shape == (2, 3, 4, 5)
    assert steps.output.shape == (2, 3, 4, 5, 13)
    assert steps.terms.shape == (2, 3, 4, 5, 11, 13)


def test_anything_that_numpy_reads():
    expected = regard.steps(QUERY, KEYS, VALUES).output
    for dtype in (np.int8, np.float16, ml_dtypes.bfloat16, np.longdouble, ">f4"):
        arrays = [np.asarray(x).astype(dtype) for x in (QUERY, KEYS, VALUES)]
        assert np.array_equal(regard.steps(*arrays).output, expected)
    assert np.array_equal(regard.steps(QUERY, np.float32(KEYS), VALUES).output, expected)
    assert np.array_equal(regard.steps(QUERY, KEYS, VALUES, bias=[0, 0, 0]).output, expected)


@pytest.mark.parametrize("bad", [[["a"]], [[1j]], [[None]], np.ma.array([[1.0]])])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(TypeError, match="query"):
        regard.steps(bad, [[1.0]], [[1.0]])


def test_refusals_are_those_of_attention():
    with pytest.raises(ValueError, match=r"\(1, 2\).*\(3, 2\).*\(2, 2\)"):
        regard.steps(QUERY, KEYS, VALUES[:2])
    with pytest.raises(ValueError, match="query_offset"):
        regard.steps(QUERY, KEYS, VALUES, causal=True)
    with pytest.raises(TypeError, match="mask"):
        regard.steps(QUERY, KEYS, VALUES, mask=[1, 0, 1])


def test_rows_without_keys_and_numbers_that_are_none():
    q, k, v = normal(4, (3, 2), (5, 2), (5, 4), dtype=np.float64)
    k[4], v[4], q[2] = np.nan, np.inf, np.nan
    steps = regard.steps(q, k, v, mask=[[True] * 4 + [False]] * 2 + [[False] * 5])
    assert np.isfinite(steps.output).all()
    assert not steps.output[2].any()
    assert steps.lse[2] == -np.inf
    assert not steps.weights[:, 4].any()


# ---------------------------------------------------------------------------------- written out


def test_the_example_written_out():
    written = """\
Query 0 of 1, 3 keys

1. Scores: query · key
   key 0  [1, 0] · [1, 0] = 1
   key 1  [1, 0] · [0, 1] = 0
   key 2  [1, 0] · [1, 1] = 1

2. Scaled: ÷ √2 = 1.414
   key 0  1 ÷ 1.414 = 0.7071
   key 1  0 ÷ 1.414 = 0
   key 2  1 ÷ 1.414 = 0.7071

3. Weights: softmax, e^score ÷ the sum of all
   key 0  e^0.7071 = 2.028 ÷ 5.056 = 0.4011
   key 1  e^0      = 1     ÷ 5.056 = 0.1978
   key 2  e^0.7071 = 2.028 ÷ 5.056 = 0.4011
   sum               5.056           1

4. Output: weight × value, added up
   key 0  0.4011 × [10,  0] = [4.011,     0]
   key 1  0.1978 × [ 0, 20] = [    0, 3.956]
   key 2  0.4011 × [30, 30] = [12.03, 12.03]
   sum                        [16.04, 15.99]"""
    steps = regard.steps(QUERY, KEYS, VALUES)
    assert str(steps) == written
    assert steps._repr_html_() == f"<pre>{html.escape(written)}</pre>"


def test_every_option_is_written_out():
    q, k, v = normal(6, (2, 6, 5, 2), (2, 3, 5, 2), (2, 3, 5, 3))
    steps = regard.steps(
        q, k, v, scale=0.25, softcap=5, bias=normal(7, (5, 5)), sinks=[0.5] * 6, causal=True,
        dropout=0.5, seed=1,
    )  # fmt: skip
    text = steps.text(query=3, head=4, item=(1,))
    assert text.splitlines()[0] == "Query 3 of 5, 5 keys, head 4 of 6, item 1"
    titles = [line.split(". ")[1].split(":")[0] for line in text.splitlines() if line[:1].isdigit()]
    assert titles == ["Scores", "Scaled", "Capped softly", "Biased", "Weights", "Dropout", "Output"]
    assert "key 4  masked" in text
    assert "sink" in text
    assert f"= {steps.weights[1, 4, 3, 2]:.4g}" in text
    assert ", ".join(f"{x:.4g}" for x in steps.output[1, 4, 3]).split(", ")[0] in text


def test_what_is_left_out_is_counted():
    q, k, v = normal(8, (1, 64), (1000, 64), (1000, 9), dtype=np.float64)
    text = str(regard.steps(q, k, v))
    assert "the 12 heaviest of 1000 keys are shown" in text
    assert "vectors of 64 numbers" in text
    assert text.count("… 988 more") == 2
    assert len(text.splitlines()) < 70
    assert max(map(len, text.splitlines())) < 160
    heaviest = int(np.argmax(regard.steps(q, k, v).weights))
    assert f"key {heaviest} " in text


def test_large_scores_are_written_without_overflow():
    text = str(regard.steps([[100.0]], [[100.0], [99.0]], [[1.0], [2.0]]))
    assert "e^(score - 10000)" in text
    assert "inf" not in text
    assert "e^(score + 10000)" in str(regard.steps([[100.0]], [[-100.0]], [[1.0]]))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (((0, 3), (2, 3), (2, 1)), "nothing to calculate"),
        (((0, 2, 5, 3), (0, 2, 7, 3), (0, 2, 7, 1)), "nothing to calculate"),
        (((1, 3), (0, 3), (0, 2)), "may attend to no key"),
        (((1, 3), (2, 3), (2, 0)), "= []"),
    ],
)
def test_little_or_nothing_written_out(shape, said):
    assert said in str(regard.steps(*(np.ones(s) for s in shape)))


def test_numbers_that_are_none_written_out():
    text = str(regard.steps([[np.inf, 1]], [[1, 1], [0, 0]], [[1.0], [2.0]]))
    assert "nan" in text


def test_a_row_can_have_a_name():
    steps = regard.steps(QUERY, KEYS, VALUES)
    assert str(replace(steps, title="<it>")).startswith("<it>\n")
    assert "&lt;it&gt;" in replace(steps, title="<it>")._repr_html_()
