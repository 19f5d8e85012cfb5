"""The Attention operator of ONNX: every case of the onnx package, and what these leave open."""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from near import same
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

import regard
from regard import _kernel
from regard.onnx import Attention

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

with np.errstate(all="ignore"):
    CASES = [c for c in collect_testcases("Attention") if not c.name.endswith("_expanded")]


def calls() -> np.ndarray:
    """How often forward and tile ran."""
    return np.array(_kernel.calls())[[0, 2]]


def places_apart(a: np.ndarray, b: np.ndarray) -> int:
    """How many numbers of bfloat16 lie between two arrays of them, where they are most apart."""
    places = [one.view(np.int16).astype(np.int32) for one in (a, b)]
    up, down = (np.where(one < 0, -32768 - one, one) for one in places)
    return int(np.abs(up - down).max())


def exact(case, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the onnx package itself answers in float64, where nothing is rounded on the way."""
    names = [one.name for one in case.model.graph.input]
    wide = [one.astype(np.float64) if one.dtype == BFLOAT16 else one for one in inputs]
    return ReferenceEvaluator(case.model).run(None, dict(zip(names, wide, strict=True)))


def test_all_cases_are_here():
    assert len(CASES) == 93
    assert {case.model.opset_import[0].version for case in CASES} == {23, 24, 25}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removeprefix("test_attention_"))
def test_case_of_the_onnx_package(case):
    (node,) = case.model.graph.node
    evaluator = ReferenceEvaluator(case.model, new_ops=[Attention])
    names = [one.name for one in case.model.graph.input]
    for inputs, expected in case.data_sets:
        before = calls()
        found = evaluator.run(None, dict(zip(names, inputs, strict=True)))
        tables = len(node.output) > 3 and node.output[3] != ""
        assert (calls() - before).tolist() == [1, int(tables)]
        for number, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            assert one.shape == wanted.shape
            assert one.dtype == wanted.dtype
            if one.dtype == BFLOAT16:
                # What is expected was rounded on the way: query, key and weights, each to 8 bits.
                # The exact answer is one unit of the largest number away from it, ours no more.
                truth = exact(case, inputs)[number]
                assert places_apart(one, truth.astype(BFLOAT16)) <= 1
                largest = np.abs(wanted).max()
                unit = np.spacing(largest).astype(np.float64)
                assert np.abs(one.astype(np.float64) - wanted.astype(np.float64)).max() <= unit
            else:
                np.testing.assert_allclose(one, wanted, rtol=case.rtol, atol=case.atol)


def run(*inputs: np.ndarray | None, outputs: int = 1, opset: int = 25, **attributes):
    """Evaluate one node; an input that is None is absent."""
    names = ["q", "k", "v", "mask", "past_key", "past_value", "lengths"][: len(inputs)]
    given = {name: one for name, one in zip(names, inputs, strict=True) if one is not None}
    node = helper.make_node(
        "Attention",
        [name if name in given else "" for name in names],
        ["y", "present_key", "present_value", "table"][:outputs],
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in given],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model, new_ops=[Attention]).run(None, given)


def normal(*shapes: tuple[int, ...], dtype=np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


Q, K, V = normal((2, 6, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_it_is_regard(dtype):
    arrays = [one.astype(dtype) for one in (Q, K, V)]
    assert same(run(*arrays)[0], regard.attention(*arrays))


def test_three_axes_are_four_without_a_copy_of_heads():
    def joined(array):
        return array.swapaxes(1, 2).reshape(array.shape[0], array.shape[2], -1)

    found = run(*map(joined, (Q, K, V)), outputs=3, q_num_heads=6, kv_num_heads=3)
    assert same(found[0], joined(regard.attention(Q, K, V)))
    assert same(np.ascontiguousarray(found[1]), K)
    assert same(np.ascontiguousarray(found[2]), V)


def test_scores_before_the_soft_cap_are_mode_0():
    """The operator says so; its evaluator in the onnx package returns those of mode 1."""
    mask = normal((5, 11))[0]
    mask[3] = -np.inf
    options = {"softcap": 0.5, "outputs": 4, "is_causal": 1}
    modes = [run(Q, K, V, mask, qk_matmul_output_mode=mode, **options)[3] for mode in range(4)]
    raw = Q @ np.repeat(K, 2, 1).swapaxes(2, 3) / np.sqrt(7)
    judge = regard.steps(Q, K, V, bias=mask, softcap=0.5, causal=True, query_offset=0)
    np.testing.assert_allclose(modes[0], raw, atol=1e-5)
    np.testing.assert_allclose(modes[1], 0.5 * np.tanh(raw / 0.5), atol=1e-5)
    np.testing.assert_allclose(modes[2], np.where(judge.allowed, judge.biased, -np.inf), atol=1e-5)
    np.testing.assert_allclose(modes[3], judge.weights, atol=1e-6)


def test_a_cache_is_a_call_on_all_keys():
    past = slice(0, 8), slice(8, 11)
    found, key, value = run(
        Q, K[:, :, past[1]], V[:, :, past[1]], None, K[:, :, past[0]], V[:, :, past[0]],
        outputs=3, is_causal=1,
    )  # fmt: skip
    assert same(found, regard.attention(Q, K, V, causal=True, query_offset=8))
    assert same(key, K)
    assert same(value, V)


@pytest.mark.parametrize("lengths", [[3, 11], [0, 17]])
def test_lengths_place_the_queries(lengths):
    """Also lengths below the number of queries, and beyond the keys."""
    lengths = np.array(lengths)
    found = run(Q, K, V, None, None, None, lengths, is_causal=1, left_window_size=4)[0]
    options = {"key_lengths": lengths.clip(0, 11), "query_offset": lengths - 5}
    assert same(found, regard.attention(Q, K, V, causal=True, window=(4, None), **options))


def test_masks_of_every_kind():
    boolean = np.random.default_rng(3).random((6, 5, 11)) < 0.6
    assert same(run(Q, K, V, boolean)[0], regard.attention(Q, K, V, mask=boolean))
    short = boolean[..., :7]
    cut = (Q, K[:, :, :7], V[:, :, :7])
    np.testing.assert_allclose(
        run(Q, K, V, short)[0], regard.attention(*cut, mask=short), rtol=1e-5, atol=1e-6
    )
    whole = np.arange(11)[None] % 3
    assert same(run(Q, K, V, whole)[0], regard.attention(Q, K, V, bias=whole.astype(float)))
    # A rank of three is heads, also where the items are as many.
    q, k, v = (one[:, :2] for one in (Q, K, V))
    heads = boolean[:2]
    assert same(run(q, k, v, heads)[0], regard.attention(q, k, v, mask=heads[None]))


def test_a_row_that_attends_nan_is_nan():
    bias = np.zeros((5, 11), np.float32)
    bias[2, 4] = np.nan
    bad = np.isnan(run(Q, K, V, bias)[0]).all((0, 1, 3))
    assert bad.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("inputs", "attributes", "said"),
    [
        ((Q, K, V, None, K), {}, "past_key and past_value"),
        ((Q, K, V, None, K, V, np.array([3, 3])), {}, "nonpad_kv_seqlen"),
        ((Q[0], K[0], V[0]), {}, "q_num_heads"),
        ((Q[0], K[0], V[0]), {"q_num_heads": 2, "kv_num_heads": 1}, "q_num_heads.*divisor"),
        ((Q, K, V), {"q_num_heads": 2}, "q_num_heads.*three axes"),
        ((Q, K, V), {"left_window_size": -2}, "left_window_size"),
        ((Q, K, V), {"qk_matmul_output_mode": 4, "outputs": 4}, "qk_matmul_output_mode"),
        ((Q[:, :5], K, V), {}, "multiple"),
    ],
)
def test_refusals_name_the_argument(inputs, attributes, said):
    with pytest.raises((TypeError, ValueError), match=said):
        run(*inputs, **attributes)


@pytest.mark.parametrize("opset", [23, 24])
def test_onnxruntime_agrees(opset):
    runtime = pytest.importorskip("onnxruntime")
    attributes = "is_causal = 1, softcap = 3.0"
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": {opset}]>
        one (float[2,6,5,7] q, float[2,3,11,7] k, float[2,3,11,13] v) => (float[2,6,5,13] y)
        {{ y = Attention <{attributes}> (q, k, v) }}
    """)
    given = {"q": Q, "k": K, "v": V}
    session = runtime.InferenceSession(model.SerializeToString())
    ours = ReferenceEvaluator(model, new_ops=[Attention]).run(None, given)[0]
    np.testing.assert_allclose(ours, session.run(None, given)[0], rtol=1e-5, atol=1e-6)
