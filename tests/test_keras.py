"""Keras's door: layers that hold Keras's weights and give its answers, on each backend.

The backend is the process's, TensorFlow's by default; the others get processes of their own.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers as theirs
from keras import ops

import regard
import regard.keras as ours
from regard import _kernel
from regard.keras import computing
from regard.keras.masks import Masks

BACKEND = keras.backend.backend()
HERE = Path(__file__).parent


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def numbers(x):
    return np.asarray(ops.convert_to_numpy(x), np.float32)


def heads(kind, module, **more):
    """A layer of one kind, of Keras's or ours."""
    if kind == "grouped":
        options = {"head_dim": 5, "num_query_heads": 6, "num_key_value_heads": 3}
        return module.GroupQueryAttention(**options, **more)
    return module.MultiHeadAttention(num_heads=3, key_dim=5, **more)


def twins(kind, *shapes, **more):
    """Keras's layer and ours, with the same weights, built for these shapes."""
    pair = heads(kind, theirs, **more), heads(kind, ours, **more)
    for layer in pair:
        layer.build(*shapes)
    weights = [normal(*w.shape, seed=n) * 0.4 for n, w in enumerate(pair[0].weights)]
    for layer in pair:
        layer.set_weights(weights)
    return pair


def masked(x, real):
    """A tensor that carries a mask, as layers hand it on."""
    x = ops.convert_to_tensor(x)
    x._keras_mask = ops.convert_to_tensor(real)
    return x


def lengths(*counts, of):
    return np.arange(of) < np.array(counts)[:, None]


# Where all rows may attend something, Keras's two ways agree with each other and with us.
CALLS = {
    "self": {},
    "causal": {"use_causal_mask": True},
    "mask of an item": {"attention_mask": normal(2, 7, 7) < 0.5},
    "mask of all": {"attention_mask": (normal(7, 7) < 0.5) | np.eye(7, dtype=bool)},
    "mask of a head": {"attention_mask": normal(2, 1, 7, 7) < 0.5},
    "causal with a mask": {
        "attention_mask": (normal(2, 7, 7) < 0.5) | np.eye(7, dtype=bool),
        "use_causal_mask": True,
    },
    "padded keys": {"value_mask": lengths(7, 4, of=7)},
    "padded on the left, causal": {
        "key_mask": lengths(7, 4, of=7) | ~lengths(1, 1, of=7),
        "use_causal_mask": True,
    },
}


@pytest.mark.parametrize("kind", ["heads", "grouped"])
@pytest.mark.parametrize("call", CALLS)
def test_the_same_answers_as_keras(kind, call):
    x = normal(2, 7, 11)
    before = _kernel.calls()[0]
    a, b = twins(kind, x.shape, x.shape)
    expected, expected_scores = a(x, x, **CALLS[call], return_attention_scores=True)
    found, scores = b(x, x, **CALLS[call], return_attention_scores=True)
    np.testing.assert_allclose(numbers(found), numbers(expected), 2e-5, 2e-5)
    np.testing.assert_allclose(numbers(scores), numbers(expected_scores), 2e-5, 2e-5)
    # Nothing changes because somebody asked for the scores.
    np.testing.assert_array_equal(numbers(b(x, x, **CALLS[call])), numbers(found))
    if BACKEND != "jax":
        assert _kernel.calls()[0] - before == 2


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("heads", {"value_dim": 3, "output_shape": (2, 3), "use_bias": False}),
        ("heads", {"use_gate": True, "sliding_window": 2}),
        ("grouped", {"use_gate": True, "sliding_window": 3, "use_bias": False}),
    ],
)
def test_all_that_a_layer_can_be(kind, more):
    q, k, v = normal(2, 5, 11), normal(2, 7, 9, seed=1), normal(2, 7, 13, seed=2)
    a, b = twins(kind, q.shape, v.shape, k.shape, **more)
    assert a.get_config() == b.get_config() | {"name": a.name}
    for causal in (False, True):
        # With scores, since Keras on JAX has no other way for values of another width.
        expected, _ = a(q, v, k, use_causal_mask=causal, return_attention_scores=True)
        found = b(q, v, k, use_causal_mask=causal)
        assert found.shape == expected.shape
        np.testing.assert_allclose(numbers(found), numbers(expected), 2e-5, 2e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "mixed_bfloat16"])
def test_other_dtypes(dtype):
    if BACKEND == "jax" and dtype == "float64":
        return  # JAX computes in float32 unless told otherwise at its start
    x = normal(2, 7, 11)
    exact, _ = twins("heads", x.shape, x.shape)
    _, layer = twins("heads", x.shape, x.shape, dtype=dtype)
    found = layer(x, x, use_causal_mask=True)
    assert keras.backend.standardize_dtype(found.dtype) == dtype.removeprefix("mixed_")
    bound = {"float64": 1e-5, "float16": 1e-2}.get(dtype, 6e-2)
    expected = numbers(exact(x, x, use_causal_mask=True))
    np.testing.assert_allclose(numbers(found), expected, bound, bound * 4)


@pytest.mark.parametrize("scaled", [False, True])
def test_attention_without_heads(scaled):
    q, v, k = normal(2, 5, 11), normal(2, 7, 3, seed=1), normal(2, 7, 11, seed=2)
    a, b = (module.Attention(use_scale=scaled) for module in (theirs, ours))
    for layer in (a, b):
        layer.build([q.shape, v.shape, k.shape])
        if scaled:
            layer.set_weights([np.float32(0.3)])
    for mask in (None, [lengths(5, 2, of=5), lengths(7, 3, of=7)]):
        for causal in (False, True):
            more = {"mask": mask, "use_causal_mask": causal}
            expected = a([q, v, k], **more, return_attention_scores=True)
            found = b([q, v, k], **more, return_attention_scores=True)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_allclose(numbers(x), numbers(y), 2e-5, 2e-5)
            np.testing.assert_array_equal(numbers(b([q, v, k], **more)), numbers(found[0]))
    images = normal(2, 3, 5, 7)
    np.testing.assert_allclose(
        numbers(ours.Attention()([images, images])),
        numbers(theirs.Attention()([images, images])),
        2e-5,
        2e-5,
    )


# ----------------------------------------------------------------------------------- padding, masks


@pytest.mark.parametrize("kind", ["heads", "grouped"])
@pytest.mark.parametrize("scores", [False, True])
def test_rows_of_padding_are_zero_whether_scores_are_returned_or_not(kind, scores):
    x = normal(2, 7, 11)
    _, layer = twins(kind, x.shape, x.shape, use_bias=False)
    for real in (lengths(7, 3, of=7), lengths(7, 3, of=7)[:, ::-1]):
        options = {"query_mask": real, "value_mask": real, "return_attention_scores": scores}
        if kind == "heads":  # whose queries carry their mask themselves
            del options["query_mask"]
        found = layer(masked(x, real), ops.convert_to_tensor(x), **options)
        found, weights = found if scores else (found, None)
        assert not numbers(found)[~real].any()
        assert numbers(found)[real].all()
        if scores:
            assert not numbers(weights).swapaxes(1, 2)[~real].any()


def test_a_row_that_may_attend_nothing_has_weight_nowhere():
    x = normal(2, 7, 11)
    output, scores = ours.Attention()(
        [x, x], mask=[np.ones((2, 7), bool), lengths(7, 0, of=7)], return_attention_scores=True
    )
    assert not numbers(output)[1].any()
    assert not numbers(scores)[1].any()
    np.testing.assert_allclose(numbers(scores)[0].sum(-1), 1, 1e-5)


@pytest.mark.parametrize("kind", ["heads", "grouped"])
def test_masks_are_never_multiplied_out(kind, monkeypatch):
    x, real = normal(2, 7, 11), lengths(7, 4, of=7)
    a, b = twins(kind, x.shape, x.shape, sliding_window=3)
    expected = numbers(a(masked(x, real), masked(x, real), use_causal_mask=True))
    base = type(a)
    seen = []
    attend = computing.attend
    monkeypatch.setattr(
        "regard.keras.layers.attend", lambda *x, **o: seen.append(o) or attend(*x, **o)
    )
    monkeypatch.setattr(base, "_compute_attention_mask", None)
    monkeypatch.setattr(base, "_compute_causal_mask", None)
    found = numbers(b(masked(x, real), masked(x, real), use_causal_mask=True))
    np.testing.assert_allclose(found[real], expected[real], 2e-5, 2e-5)
    for one in seen[0].values():
        for array in one if isinstance(one, tuple) else (one,):
            assert np.prod(getattr(array, "shape", ())) <= 2 * 7


def test_keys_and_values_of_groups_are_not_repeated(monkeypatch):
    x = normal(2, 7, 11)
    _, layer = twins("grouped", x.shape, x.shape)
    seen = []
    attend = computing.attend
    monkeypatch.setattr(
        "regard.keras.layers.attend", lambda *x, **o: seen.append(x) or attend(*x, **o)
    )
    layer(x, x)
    assert [tuple(one.shape) for one in seen[0][:3]] == [(2, 7, 6, 5), (2, 7, 3, 5), (2, 7, 3, 5)]


def test_a_subclass_gets_what_it_gets_from_keras():
    seen = []

    class Heads(ours.MultiHeadAttention):
        def _compute_attention(self, query, key, value, attention_mask=None, *rest, **more):
            seen.append(attention_mask)
            return super()._compute_attention(query, key, value, attention_mask, *rest, **more)

    class Grouped(ours.GroupQueryAttention):
        def _compute_attention(self, query, key, value, attention_mask=None, *rest, **more):
            seen.append(attention_mask)
            assert key.shape[2] == query.shape[2]
            return super()._compute_attention(query, key, value, attention_mask, *rest, **more)

    x = normal(2, 7, 11)
    Heads(3, 5)(x, x, use_causal_mask=True)
    Grouped(5, 6, 3)(x, x, use_causal_mask=True)
    for mask in seen:
        np.testing.assert_array_equal(numbers(mask)[0], np.tri(7))


# ----------------------------------------------------------------------------------------- training


def text_model(module=None, kind="heads", dropout=0.0, seed=3):
    """A small classifier of padded texts; with module `None` Keras also returns scores."""
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((None,), dtype="int32")
    x = theirs.Embedding(97, 16, mask_zero=True)(tokens)
    layer = heads(kind, module or theirs, dropout=dropout)
    if module is None:
        x = theirs.Add()([x, layer(x, x, return_attention_scores=True)[0]])
    else:
        x = theirs.Add()([x, layer(x, x)])
    x = theirs.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, theirs.Dense(2)(x))


def tokens_of(count, rows=13):
    random = np.random.default_rng(1)
    tokens = random.integers(1, 97, (count, rows))
    return tokens * lengths(*random.integers(1, rows + 1, count), of=rows)


@pytest.mark.parametrize("kind", ["heads", "grouped"])
def test_a_step_of_training_moves_the_same_weights(kind):
    x, y = tokens_of(5), np.array([0, 1, 1, 0, 1])
    before, after = [], []
    calls = _kernel.calls()
    for module in (theirs, ours):
        model = text_model(module, kind)
        model.compile(
            keras.optimizers.SGD(1.0),
            keras.losses.SparseCategoricalCrossentropy(True),
            jit_compile=BACKEND == "jax",
        )
        before.append(model.get_weights())
        model.train_on_batch(x, y)
        after.append(model.get_weights())
    for w, a, b in zip(before[0], *after, strict=True):
        np.testing.assert_allclose(a - w, b - w, 1e-3, 2e-6)
        assert np.abs(a - w).max() > 0
    if BACKEND != "jax":
        assert _kernel.calls()[1] - calls[1] == 1


@pytest.mark.parametrize("kind", ["heads", "grouped", "attention"])
def test_dropout(kind):
    x = ops.ones((2, 7, 13))
    values = np.broadcast_to(np.eye(13, dtype=np.float32)[:7], (2, 7, 13))
    rate = 0.4
    if kind == "attention":
        layer = ours.Attention(dropout=rate, seed=5)

        def call(training):
            return layer([x, ops.convert_to_tensor(values), x], training=training)
    else:
        layer = heads(kind, ours, dropout=rate, seed=5)
        layer.build(x.shape, x.shape)

        def call(training):
            return layer(x, values, x, training=training)

    quiet = numbers(call(False))
    np.testing.assert_array_equal(numbers(call(False)), quiet)
    first, second = numbers(call(True)), numbers(call(True))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, quiet)
    if kind == "attention":
        # Each weight is 1/7 or dropped; a kept one is divided by what remains.
        kept = first[..., :7]
        np.testing.assert_allclose(np.unique(kept.round(5)), [0, np.float32(1 / 7 / 0.6).round(5)])
        assert 0.3 < (kept > 0).mean() < 0.9


def test_training_with_dropout_is_repeatable():
    x, y = tokens_of(5), np.array([0, 1, 1, 0, 1])
    losses = []
    for _ in range(2):
        model = text_model(ours, dropout=0.5)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
        losses.append([float(model.train_on_batch(x, y)) for _ in range(3)])
    assert losses[0] == losses[1]


def texts():
    """Lines of two books as numbers of their words, padded, and which book each is from."""
    lines = [
        (HERE / "texts" / f"{name}.txt").read_text().splitlines() for name in ("alice", "sonnets")
    ]
    words = [
        [w.strip(".,:;!?()\"'").lower() for w in line.split()] for line in itertools.chain(*lines)
    ]
    count = {}
    for word in itertools.chain(*words):
        count[word] = count.get(word, 0) + 1
    known = sorted(count, key=lambda w: (-count[w], w))[:96]
    x = np.zeros((len(words), 24), np.int32)
    for row, line in zip(x, words, strict=True):
        numbered = [known.index(w) + 1 for w in line if w in known][:24]
        row[: len(numbered)] = numbered
    y = np.repeat([0, 1], [len(part) for part in lines])
    some = x.any(-1)
    order = np.random.default_rng(0).permutation(some.sum())
    return x[some][order], y[some][order]


def test_a_text_classifier_learns_as_with_keras():
    x, y = texts()
    curves = {}
    for name, module in {"fused": theirs, "einsum": None, "ours": ours}.items():
        model = text_model(module)
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(True))
        history = model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0).history
        curves[name] = np.array(history["loss"])
    assert curves["ours"][-1] < 0.7 * curves["ours"][0]
    between_theirs = np.abs(curves["fused"] - curves["einsum"]).max()
    assert np.abs(curves["fused"] - curves["ours"]).max() <= 10 * max(between_theirs, 1e-7)


# ----------------------------------------------------------------------------------- convert, files


def models():
    i = keras.Input((7, 8))
    x = theirs.MultiHeadAttention(2, 4)(i, i, use_causal_mask=True)
    x = theirs.GroupQueryAttention(4, 4, 2)(x, x)
    functional = keras.Model(i, theirs.Attention()([x, x]))

    class Block(theirs.Layer):
        def __init__(self):
            super().__init__()
            self.attention = theirs.MultiHeadAttention(2, 4)

        def call(self, x):
            return self.attention(x, x)

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.block, self.other = Block(), functional

        def call(self, x):
            return self.other(self.block(x))

    return {"functional": functional, "nested": keras.Sequential([i, Subclassed()])}


@pytest.mark.parametrize("name", ["functional", "nested"])
def test_convert_and_back(name):
    model, x = models()[name], normal(3, 7, 8)
    model.compile("sgd", "mse")
    expected, weights = model.predict(x, verbose=0), model.weights
    before = _kernel.calls()[0]
    assert ours.convert(model) is model
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, 2e-5, 2e-6)
    assert all(a is b for a, b in zip(weights, model.weights, strict=True))
    if BACKEND != "jax":
        assert _kernel.calls()[0] - before >= 3
    before = _kernel.calls()[0]
    assert ours.convert(ours.convert(model), back=True) is model
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert _kernel.calls()[0] == before
    assert not [layer for layer in model._flatten_layers() if "regard" in type(layer).__module__]


def test_convert_leaves_subclasses_and_refuses_what_has_no_attention():
    class Special(theirs.MultiHeadAttention):
        pass

    i = keras.Input((7, 8))
    model = ours.convert(keras.Model(i, Special(2, 4)(i, i)))
    assert type(model.layers[-1]) is Special
    with pytest.raises(ValueError, match="without any"):
        ours.convert(keras.Model(i, theirs.Dense(2)(i)))
    with pytest.raises(TypeError, match="Keras model"):
        ours.convert(3)


def test_files_of_keras_and_ours(tmp_path):
    x = normal(3, 7, 8)
    model = models()["functional"]
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "theirs.keras")
    loaded = ours.convert(keras.models.load_model(tmp_path / "theirs.keras"))
    loaded.save(tmp_path / "ours.keras")
    again = keras.models.load_model(tmp_path / "ours.keras")
    kinds = [ours.MultiHeadAttention, ours.GroupQueryAttention, ours.Attention]
    assert [type(layer) for layer in again.layers[1:]] == kinds
    again.save_weights(tmp_path / "of.weights.h5")
    model.load_weights(tmp_path / "of.weights.h5")
    for one in (loaded, again, model):
        np.testing.assert_allclose(one.predict(x, verbose=0), expected, 2e-5, 2e-6)


PLAIN = """
import sys
sys.modules["regard"] = None
import keras, numpy as np
x, expected = np.load("x.npy"), np.load("expected.npy")
back = keras.models.load_model("back.keras")
as_keras = {"regard>MultiHeadAttention": keras.layers.MultiHeadAttention,
    "regard>GroupedQueryAttention": keras.layers.GroupQueryAttention,
    "regard>Attention": keras.layers.Attention}
ours = keras.models.load_model("ours.keras", custom_objects=as_keras)
for model in (back, ours):
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, 2e-5, 2e-6)
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    loaded = tf.saved_model.load("exported")
    np.testing.assert_allclose(loaded.serve(x), expected, 2e-5, 2e-6)
print("read")
"""


def test_files_for_those_who_have_no_regard(tmp_path):
    x = normal(3, 7, 8)
    model = ours.convert(models()["functional"])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "expected.npy", model.predict(x, verbose=0))
    model.save(tmp_path / "ours.keras")
    if BACKEND == "tensorflow":
        model.export(tmp_path / "exported", verbose=False)
    ours.convert(model, back=True).save(tmp_path / "back.keras")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=os.environ | {"KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert "read" in done.stdout, done.stderr[-3000:]


def test_compiled_by_xla():
    if BACKEND != "tensorflow":
        return  # JAX always compiles
    x, y = tokens_of(5), np.array([0, 1, 1, 0, 1])
    losses = []
    for module in (theirs, ours):
        model = text_model(module)
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=True)
        losses.append([float(model.train_on_batch(x, y)) for _ in range(2)])
    np.testing.assert_allclose(*losses, 1e-5)


# --------------------------------------------------------------------------------------------- look


@pytest.mark.parametrize("kind", ["heads", "grouped"])
def test_look(kind):
    x, real = normal(2, 7, 11), lengths(7, 4, of=7)
    _, layer = twins(kind, x.shape, x.shape, dropout=0.5)
    tensor = masked(x, real)
    seen = layer.look(tensor, tensor, use_causal_mask=True)
    assert tensor._keras_mask is not None
    output, scores = layer(
        tensor, masked(x, real), use_causal_mask=True, return_attention_scores=True
    )
    np.testing.assert_allclose(seen.weights[...], numbers(scores), 1e-5, 1e-6)
    assert seen.check().verified
    np.testing.assert_array_equal(seen.real_rows, real)
    assert seen.output.shape == (2, 3 if kind == "heads" else 6, 7, 5)
    assert output.shape == x.shape


def test_look_at_a_long_call():
    x = normal(1, 20011, 2)
    layer = ours.MultiHeadAttention(num_heads=1, key_dim=2)
    seen = layer.look(x, x, use_causal_mask=True)
    assert seen.shape == (1, 1, 20011, 20011)
    np.testing.assert_allclose(seen.weights[0, 0, 17, :].sum(), 1, 1e-5)
    assert seen.nbytes < 4e6


def test_look_at_attention_without_heads():
    x = normal(2, 7, 11)
    layer = ours.Attention()
    seen = layer.look([x, x], mask=[lengths(7, 4, of=7), lengths(7, 4, of=7)])
    scores = layer([x, x], [None, lengths(7, 4, of=7)], return_attention_scores=True)[1]
    np.testing.assert_allclose(seen.weights[0, 0], numbers(scores)[0], 1e-5, 1e-6)
    assert not seen.weights[1, 0, 4:].any()


def test_a_look_that_cannot_be():
    layer = ours.MultiHeadAttention(num_heads=2, key_dim=3)
    for x in (keras.Input((7, 8)), normal(2, 3, 5, 8)):
        with pytest.raises(TypeError, match="look"):
            ours.MultiHeadAttention(num_heads=2, key_dim=3).look(x, x)
    with pytest.raises(TypeError, match="look"):
        ours.Attention(score_mode="concat").look([normal(2, 7, 8)] * 2)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with pytest.raises(TypeError, match="look"):
            tf.function(lambda x: layer.look(x, x).output)(tf.ones((2, 7, 8)))


# ----------------------------------------------------------------------------------- long, backends


def test_blocks_and_their_joints(monkeypatch):
    """`keras.ops` alone, as for a backend without a door, against the kernel."""
    q, k, v = normal(2, 6, 13, 5), normal(2, 3, 11, 5, seed=1), normal(2, 3, 11, 7, seed=2)
    options = {
        "mask": normal(2, 1, 13, 11) < 1,
        "segments": (np.arange(13) // 5, np.arange(11) // 5),
        "causal": True,
        "window": (8, 8),
        "query_offset": 0,
        "scale": 0.3,
        "dropout": 0.3,
        "seed": 123456,
    }
    expected = regard.attention(q, k, v, **options)
    given = {n: x for n, x in options.items() if n not in ("mask", "segments", "seed")}
    given["mask"] = ops.convert_to_tensor(options["mask"])
    given["segments"] = tuple(ops.convert_to_tensor(x, "int32") for x in options["segments"])
    for block in (1 << 22, 2 * 6 * 11 * 5):
        monkeypatch.setattr("regard.keras.blocks.BLOCK", block)
        if BACKEND == "torch":
            break  # PyTorch has no arithmetic of unsigned words, and a door
        found = computing.by_blocks(*map(ops.convert_to_tensor, (q, k, v)), **given, seed=123456)
        np.testing.assert_allclose(numbers(found), expected, 1e-5, 1e-6)


def test_masks_say_what_they_are():
    x = normal(2, 7, 11)
    assert Masks(x, x).options() == {}
    options = Masks(x, x, use_causal_mask=True).options(sliding_window=3)
    assert options == {"causal": True, "window": (2, 2), "query_offset": 0}


# On JAX everything compiles for seconds.
OTHERS = {
    "torch": "not tensorflow_only and not files_for_those",
    "jax": "heads and (keys or moves_the_same or test_look) or joints",
    "numpy": "(same_answers and padded) or without_heads or look_at",
}


def other(backend, which):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", which],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"KERAS_BACKEND": backend},
        cwd=HERE.parent,
    )
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("backend", OTHERS)
def test_tensorflow_only_starts_the_other_backends(backend):
    other(backend, OTHERS[backend])


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_tensorflow_only_starts_all_on_other_backends(backend):
    other(backend, "not tensorflow_only")


STEP = """
import resource, sys, time
import keras, numpy as np, regard.keras
module = {"ours": regard.keras, "theirs": keras.layers}[sys.argv[1]]
tokens = keras.Input((4096,), dtype="int32")
x = keras.layers.Embedding(97, 64, mask_zero=True)(tokens)
x = keras.layers.Add()([x, module.MultiHeadAttention(8, 64)(x, x)])
model = keras.Model(tokens, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
x, y = np.random.default_rng(0).integers(1, 97, (1, 4096)), np.array([1])
x[:, 3600:] = 0
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
took = []
for _ in range(4):
    begin = time.perf_counter()
    model.train_on_batch(x, y)
    took.append(time.perf_counter() - begin)
print(min(took), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.long
def test_tensorflow_only_a_step_at_4096_is_faster_and_takes_little_memory():
    found = {}
    for name in ("theirs", "ours"):
        command = [sys.executable, "-c", STEP, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        found[name] = [float(word) for word in done.stdout.split()[-2:]]
    (their_time, their_memory), (our_time, our_memory) = found["theirs"], found["ours"]
    assert their_time > 1.5 * our_time, found
    assert our_memory < 0.15 * their_memory, found
