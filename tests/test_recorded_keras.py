"""Recording Keras models: same answers, the weights that Keras itself returns, all put back.

The backend is the process's, TensorFlow's by default; the others get a process each.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers as theirs
from keras import ops

import regard
import regard.keras as ours
from regard.recording import keras_layers
from regard.recording.keras_masks import rule

BACKEND = keras.backend.backend()
HERE = Path(__file__).parent
ITEMS, TOKENS, WIDTH = 3, 11, 14
LENGTHS = (11, 7, 5)
SOURCE = 13  # tokens of the other text, in cross-attention


def numbers(x):
    return np.asarray(ops.convert_to_numpy(x), np.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sharpened(model, by=2.5):
    """Weights that make attention choose."""
    for n, weight in enumerate(model.weights):
        if weight.name in ("kernel", "embeddings"):
            chooses = any(name in weight.path.split("/") for name in ("query", "key"))
            scale = 1.0 if weight.name == "embeddings" else weight.shape[0] ** -0.5
            weight.assign(normal(*weight.shape, seed=n) * scale * (by if chooses else 1))
    return model


def ids(length=TOKENS, lengths=None, seed=1):
    given = np.random.default_rng(seed).integers(1, 53, (ITEMS, length), dtype=np.int32)
    for row, past in zip(given, lengths or (), strict=False):
        row[past:] = 0
    return given


def encoder(module=theirs, **call):
    """Two layers with heads and one with groups; padding is masked."""
    tokens = keras.Input((TOKENS,), dtype="int32", name="tokens")
    x = theirs.Embedding(53, WIDTH, mask_zero=True)(tokens)
    x = module.MultiHeadAttention(num_heads=2, key_dim=7, name="first")(x, x, **call)
    wide = 5 if BACKEND == "jax" else 3  # Keras on JAX computes no others
    second = module.MultiHeadAttention(num_heads=2, key_dim=5, value_dim=wide, name="second")
    x = theirs.LayerNormalization()(x)
    x = theirs.LayerNormalization()(second(x, x, **call))
    grouped = module.GroupQueryAttention(
        head_dim=5, num_query_heads=6, num_key_value_heads=3, name="grouped"
    )
    return sharpened(keras.Model(tokens, grouped(x, x, **call)))


class Block(keras.layers.Layer):
    """A layer of a user's, with a layer inside that is made when it is built."""

    def build(self, shape):
        self.attention = theirs.MultiHeadAttention(num_heads=2, key_dim=7, name="attention")
        self.attention.build(shape, shape)

    def call(self, x):
        return x + self.attention(x, x)


def seen_in(model, *args, **options):
    with regard.record(model, **options) as seen:
        answer = model(*args)
    return seen, numbers(answer)


def bare(model):
    """What recording must leave as it was."""
    names = ("call", "predict", "predict_on_batch", "_compute_attention", "_compute_attention_mask")
    assert not keras_layers_put()
    for layer in model._flatten_layers():
        assert not set(names) & vars(layer).keys()


def keras_layers_put():
    from regard.recording.beside import _put_beside

    return dict(_put_beside)


def close(found, expected, real=None):
    """Equal, rows of padding aside; weights (B, H, T, S)."""
    if real is not None:
        found, expected = (np.where(real[:, None, :, None], x, 0) for x in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-5)


# ------------------------------------------------------------------ on each backend


@pytest.mark.parametrize("module", [theirs, ours], ids=["theirs", "ours"])
def test_each_weights_are_those_that_keras_returns(module):
    model, tokens = encoder(module), ids(lengths=LENGTHS)
    seen, answer = seen_in(model, tokens)
    assert (answer == numbers(model(tokens))).all()
    assert [x.name for x in seen.layers] == ["first", "second", "grouped"]
    assert [x.number for x in seen.layers] == [0, 1, 2]
    assert {x.kind for x in seen.layers} == {"encoder"}
    assert [x.kept.key.shape[1] for x in seen.layers] == [2, 2, 3]
    assert not seen.unrecorded
    assert seen.check().verified
    x, mask = model.layers[1](tokens), tokens != 0
    for layer in seen.layers:
        one = model.get_layer(layer.name)
        x._keras_mask = ops.convert_to_tensor(mask)
        _, scores = one(x, x, return_attention_scores=True)
        x._keras_mask = ops.convert_to_tensor(mask)
        x = theirs.LayerNormalization()(one(x, x))
        close(layer.weights[:], numbers(scores), mask)
        entropy = np.median(layer.entropy()[np.broadcast_to(mask[:, None], layer.shape[:-1])])
        assert entropy < np.log(TOKENS) / 2
    assert not any("mask" in layer.kept.options for layer in seen.layers)
    assert seen.tokens[1][:2] == [str(n) for n in tokens[1, :2]]
    assert seen.item(2).layers[0].shape == (2, 5, 5)
    bare(model)


def test_each_predict_that_was_traced_before():
    model, tokens = encoder(), ids(lengths=LENGTHS)
    before = model.predict(tokens, verbose=0)
    function = model.predict_function
    with regard.record(model) as seen:
        answer = model.predict(tokens, verbose=0)
    assert (answer == before).all()
    assert model.predict_function is function
    assert not model.run_eagerly
    bare(model)
    assert len(seen.runs) == 1
    assert len(seen.layers) == 3
    assert seen.check().verified
    direct, _ = seen_in(model, tokens)
    for one, other in zip(seen.layers, direct.layers, strict=True):
        close(one.weights[:], other.weights[:])
    assert (model.predict(tokens, verbose=0) == before).all()


def test_each_plain_attention():
    query, value = (keras.Input((n, WIDTH)) for n in (TOKENS, SOURCE))
    x = theirs.Attention(use_scale=True, name="own")([query, query], use_causal_mask=True)
    model = keras.Model([query, value], theirs.Attention(name="other")([x, value]))
    x, y = normal(ITEMS, TOKENS, WIDTH), normal(ITEMS, SOURCE, WIDTH, seed=1)
    seen, answer = seen_in(model, [x, y])
    assert (answer == numbers(model([x, y]))).all()
    assert seen.check().verified
    assert [(one.name, one.kind) for one in seen.layers] == [("own", "decoder"), ("other", "cross")]
    x, scores = model.get_layer("own")([x, x], use_causal_mask=True, return_attention_scores=True)
    close(seen.layers[0].weights[:, 0], numbers(scores))
    _, scores = model.get_layer("other")([x, y], return_attention_scores=True)
    close(seen.layers[1].weights[:, 0], numbers(scores))


def test_each_wrong_rule_is_caught(monkeypatch):
    model, tokens = encoder(use_causal_mask=True), ids()

    def shifted(masks, window):
        options = rule(masks, window)
        return options | ({"query_offset": 1} if "causal" in options else {})

    assert seen_in(model, tokens)[0].check().verified
    monkeypatch.setattr(keras_layers, "rule", shifted)
    found = seen_in(model, tokens)[0].check()
    assert not found.verified
    assert "not verified" in str(found)


def test_each_engine_of_ours():
    model, tokens = encoder(use_causal_mask=True), ids()
    before = numbers(model(tokens))
    seen, answer = seen_in(model, tokens, engine="regard")
    assert abs(answer - before).max() < 1e-5 * abs(before).max()
    assert seen.check().verified
    masked = ids(lengths=LENGTHS)
    real = (masked != 0)[..., None]
    before = numbers(model(masked)) * real
    with regard.record(model, engine="regard"):
        answer = model.predict(masked, verbose=0) * real
    assert abs(answer - before).max() < 1e-5 * abs(before).max()


# ------------------------------------------------------------------ which keys a row may see


def layer_alone(kind=theirs.MultiHeadAttention, **options):
    layer = (
        kind(head_dim=5, num_query_heads=6, num_key_value_heads=3, **options)
        if kind is theirs.GroupQueryAttention
        else kind(num_heads=3, key_dim=5, **options)
    )
    layer.build((ITEMS, TOKENS, WIDTH), (ITEMS, SOURCE, WIDTH))
    return sharpened(layer)


@pytest.mark.parametrize("kind", [theirs.MultiHeadAttention, theirs.GroupQueryAttention])
def test_explicit_masks(kind):
    layer = layer_alone(kind)
    x, y = normal(ITEMS, TOKENS, WIDTH), normal(ITEMS, SOURCE, WIDTH, seed=1)
    mask = np.random.default_rng(3).random((ITEMS, TOKENS, SOURCE)) < 0.5
    mask[..., 0] = True
    with regard.record(layer) as seen:
        answer, scores = layer(x, y, attention_mask=mask, return_attention_scores=True)
    assert (
        numbers(answer)
        == numbers(layer(x, y, attention_mask=mask, return_attention_scores=True)[0])
    ).all()
    close(seen.layers[0].weights[:], numbers(scores))
    assert seen.check().verified
    assert seen.layers[0].kind == "cross"
    assert (seen.layers[0].allowed[:, 0] == mask).all()
    run = seen.run.tokens
    assert (run["decoder"].size, run["encoder"].size) == (TOKENS, SOURCE)


def test_a_mask_is_kept_once_and_only_where_it_is_needed():
    tokens = keras.Input((TOKENS,), dtype="int32")
    mask = keras.Input((TOKENS, TOKENS), dtype="bool")
    x = theirs.Embedding(53, WIDTH)(tokens)
    for n in range(2):
        layer = theirs.MultiHeadAttention(2, 7, name=f"layer_{n}")
        x = layer(x, x, attention_mask=mask)
    model = sharpened(keras.Model([tokens, mask], x))
    odd = np.random.default_rng(3).random((ITEMS, TOKENS, TOKENS)) < 0.5
    odd |= np.eye(TOKENS, dtype=bool)
    seen, _ = seen_in(model, [ids(), odd])
    kept = [layer.kept.options["mask"] for layer in seen.layers]
    assert kept[0] is kept[1]
    assert seen.check().verified
    causal = np.broadcast_to(np.tril(np.ones((TOKENS, TOKENS), bool)), odd.shape)
    seen, _ = seen_in(model, [ids(), causal])
    assert all("ranges" in layer.kept.options for layer in seen.layers)
    assert not any("mask" in layer.kept.options for layer in seen.layers)
    assert {layer.kind for layer in seen.layers} == {"decoder"}
    assert seen.check().verified


def test_a_window():
    layer = layer_alone(sliding_window=3)
    x = normal(ITEMS, SOURCE, WIDTH)
    with regard.record(layer) as seen:
        _, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    close(seen.layers[0].weights[:], numbers(scores))
    assert seen.check().verified
    assert not {"mask", "ranges"} & seen.layers[0].kept.options.keys()


def test_padding_of_all_items_stays_tokens(tmp_path):
    model, tokens = encoder(), ids(lengths=(7, 5, 5))
    seen, _ = seen_in(model, tokens)
    assert seen.layers[0].shape == (ITEMS, 2, TOKENS, TOKENS)
    seen.save(tmp_path / "padded.regard")
    again = regard.load(tmp_path / "padded.regard")
    assert (again.layers[2].weights[:] == seen.layers[2].weights[:]).all()
    only_keys = theirs.Attention()
    real = tokens != 0
    x = normal(ITEMS, TOKENS, WIDTH)
    with regard.record(only_keys) as seen:
        only_keys([x, x], mask=[None, ops.convert_to_tensor(real)])
    seen.save(tmp_path / "keys.regard")
    assert regard.load(tmp_path / "keys.regard").layers[0].shape[-1] == TOKENS
    assert seen.check().verified


def test_encoder_and_decoder():
    source, target = (
        keras.Input((n,), dtype="int32", name=s)
        for n, s in ((SOURCE, "source"), (TOKENS, "target"))
    )
    x = theirs.Embedding(53, WIDTH, mask_zero=True)(source)
    x = theirs.MultiHeadAttention(2, 7, name="reads_itself")(x, x)
    y = theirs.Embedding(53, WIDTH)(target)
    y = theirs.MultiHeadAttention(2, 7, name="looks_back")(y, y, use_causal_mask=True)
    y = theirs.MultiHeadAttention(2, 7, name="reads_source")(y, x)
    model = sharpened(keras.Model([source, target], y))
    one, other = ids(SOURCE, LENGTHS), ids(TOKENS, seed=2)
    seen, answer = seen_in(model, [one, other])
    assert (answer == numbers(model([one, other]))).all()
    assert seen.check().verified
    kinds = {layer.name: layer.kind for layer in seen.layers}
    assert kinds == {"reads_itself": "encoder", "looks_back": "decoder", "reads_source": "cross"}
    tokens = seen.run.tokens
    assert (tokens["encoder"].ids == one).all()
    assert (tokens["decoder"].ids == other).all()
    assert (tokens["encoder"].real == (one != 0)).all()
    assert seen.item(1).layers[2].shape == (2, TOKENS, LENGTHS[1])


# ------------------------------------------------------------------ what is called, and how


def test_layers_in_layers_and_models():
    x = keras.Input((None, WIDTH))
    inner = keras.Model(x, Block(name="inside")(x), name="inner")
    parts = [keras.Input((None, WIDTH)), inner, Block(name="block"), inner]
    outer = keras.Sequential(parts, name="outer")
    outer = sharpened(outer)
    given = normal(ITEMS, TOKENS, WIDTH)
    seen, answer = seen_in(outer, given)
    assert (answer == numbers(outer(given))).all()
    assert seen.check().verified
    names = [layer.name for layer in seen.layers]
    assert names == ["inside/attention", "outer/block/attention", "inside/attention"]
    assert [layer.number for layer in seen.layers] == [0, 1, 0]
    bare(outer)
    seen.tokens = [[f"w{n}" for n in range(TOKENS)]] * ITEMS
    assert seen["w3:2"].item == 1
    assert len(seen.item(0).heads()) == 6


def test_layers_that_are_built_in_the_first_call():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def call(self, x):
            return self.block(x)

    model = Model()
    with regard.record(model) as seen:
        answer = model.predict(normal(ITEMS, TOKENS, WIDTH), verbose=0)
    assert len(seen.runs) == 1
    assert seen.check().verified
    assert len(seen.layers) == 1
    assert (answer == model.predict(normal(ITEMS, TOKENS, WIDTH), verbose=0)).all()
    bare(model)


def test_batches_of_predict_are_one_run():
    model = encoder()
    tokens = np.concatenate([ids(lengths=LENGTHS), ids(seed=2), ids(lengths=(4,), seed=3)])[:7]
    with regard.record(model) as seen:
        model(tokens)
        answer = model.predict(tokens, batch_size=3, verbose=0)
        model.predict_on_batch(tokens)
    assert (answer == model.predict(tokens, batch_size=3, verbose=0)).all()
    assert [run.items for run in seen.runs] == [7, 7, 7]
    assert seen.check().verified
    direct, _ = seen_in(model, tokens[3:6])
    for one, other in zip(direct.layers, seen.runs[1].layers, strict=True):
        close(other.weights[3:6], one.weights[:])
    assert (seen.runs[1].tokens["encoder"].ids == tokens).all()
    assert seen.item(1).layers[0].shape[-1] == LENGTHS[1]


def test_all_is_put_back_when_a_call_raises():
    model = encoder()
    before = model.predict(ids(), verbose=0)

    class Callback(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise ArithmeticError

    with pytest.raises(ArithmeticError), regard.record(model):
        model.predict(ids(), verbose=0, callbacks=[Callback()])
    bare(model)
    with pytest.raises(ArithmeticError), regard.record(model):
        raise ArithmeticError
    with regard.record(model) as seen:
        with pytest.raises(Exception, match=r"(?i)shape|expected"):
            model(ids(TOKENS + 2))
        model(ids())
    assert len(seen.runs) == 1
    bare(model)
    assert (model.predict(ids(), verbose=0) == before).all()


def test_recorders_one_in_another():
    model, tokens = encoder(), ids(lengths=LENGTHS)
    before = model.predict(tokens, verbose=0)
    with regard.record(model) as outer:
        with regard.record(model) as inner:
            answer = model.predict(tokens, verbose=0)
        assert (answer == before).all()
        model(tokens)
    assert (len(outer.runs), len(inner.runs)) == (2, 1)
    assert outer.check().verified
    assert inner.check().verified
    bare(model)


def test_recorders_that_leave_in_another_order():
    model, left = encoder(), threading.Event()
    first = regard.record(model)
    seen = [first.__enter__()]
    second = regard.record(model)
    seen.append(second.__enter__())
    model(ids())
    first.__exit__(None, None, None)
    model(ids())
    second.__exit__(None, None, None)
    left.set()
    assert [len(one.runs) for one in seen] == [1, 2]
    bare(model)


def test_what_is_asked_for_alone():
    model, tokens = encoder(), ids()
    seen, _ = seen_in(model, tokens, layers=[1], heads=[1], tokens=(3, 7), dtype="float16")
    (layer,) = seen.layers
    assert (layer.name, layer.shape, layer.kept.query.dtype) == (
        "second",
        (ITEMS, 1, 4, TOKENS),
        "float16",
    )
    whole, _ = seen_in(model, tokens)
    np.testing.assert_allclose(layer.weights[:], whole.layers[1].weights[:, 1:, 3:7], atol=5e-3)


def test_the_limit():
    model, tokens = encoder(), ids()
    with regard.record(model) as seen:
        model(tokens)
    whole = seen.run.nbytes
    with (
        pytest.warns(UserWarning, match="recording stopped"),
        regard.record(model, limit=2 * whole + 100) as seen,
    ):
        model.predict(np.concatenate([tokens] * 3), batch_size=ITEMS, verbose=0)
    assert len(seen.runs) == 1
    assert seen.run.items == 2 * ITEMS
    assert "the first 6 are kept" in repr(seen)


def test_layers_of_few_bits():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = encoder()
    finally:
        keras.config.set_dtype_policy("float32")
    seen, _ = seen_in(model, ids(lengths=LENGTHS))
    assert str(seen.layers[0].kept.query.dtype) == "bfloat16"
    assert seen.check().verified
    assert {layer.kind for layer in seen.layers} == {"encoder"}


# ------------------------------------------------------------------ what cannot be recorded


class Einsum(keras.layers.Layer):
    def call(self, x):
        return ops.einsum("bts,bsd->btd", ops.softmax(ops.einsum("btd,bsd->bts", x, x)), x)


class OwnAttention(Einsum):
    pass


def test_what_cannot_be_recorded_is_named():
    x = keras.Input((TOKENS, WIDTH))
    y = theirs.MultiHeadAttention(2, 7, name="fine")(x, x)
    y = theirs.MultiHeadAttention(2, 7, dropout=0.5, name="drops")(y, y)
    y = theirs.AdditiveAttention(name="sums")([y, y])
    y = OwnAttention(name="own")(y)
    z = ops.reshape(y, (-1, TOKENS, 2, WIDTH // 2))
    z = theirs.MultiHeadAttention(2, 7, attention_axes=(1, 2), name="axes")(z, z)
    model = keras.Model(x, z)
    given = normal(ITEMS, TOKENS, WIDTH)
    with pytest.warns(UserWarning, match="not recorded") as caught, regard.record(model) as seen:
        model(given, training=True)
    assert [layer.name for layer in seen.layers] == ["fine"]
    for name, why in {
        "drops": "training=True", "sums": "sums", "own": "code of its own", "axes": "axes",
    }.items():  # fmt: skip
        assert why in seen.unrecorded[name]
        assert name in str(caught[0].message)
    with pytest.warns(UserWarning, match="not recorded"), regard.record(model) as seen:
        model(given)
    assert [layer.name for layer in seen.layers] == ["fine", "drops"]
    assert seen.check().verified


def test_a_model_that_was_traced_by_its_user():
    if BACKEND == "torch":
        return  # there, nothing is traced
    model = encoder()
    if BACKEND == "jax":
        import jax

        traced = jax.jit(lambda x: model(x))
    else:
        import tensorflow as tf

        traced = tf.function(model)
    with pytest.raises(RuntimeError, match="traced function"), regard.record(model):
        traced(ids())
    with pytest.raises(RuntimeError, match="not called"), regard.record(model):
        traced(ids())
    bare(model)


def test_layers_that_run_while_the_model_does_not_are_named():
    class Writes(keras.Model):
        def __init__(self):
            super().__init__()
            self.reads = theirs.MultiHeadAttention(num_heads=2, key_dim=7, name="reads")

        def call(self, x):
            return self.reads(x, x)

        def generate(self, x):  # as KerasHub's models do
            return self.reads(x[:, :1], x)

    model, x = Writes(), normal(1, 5, WIDTH)
    model(x)
    with pytest.raises(RuntimeError, match="outside of a call of the model itself"):  # noqa: SIM117
        with regard.record(model):
            model.generate(x)


def test_a_model_without_attention():
    model = keras.Sequential([keras.Input((TOKENS, WIDTH)), theirs.Dense(3)])
    with pytest.raises(RuntimeError, match="Keras's attention layers"), regard.record(model):
        model(normal(ITEMS, TOKENS, WIDTH))


class Biased(theirs.MultiHeadAttention):
    """A subclass that attends as it likes."""

    def _compute_attention(self, query, *args, **kwargs):
        return super()._compute_attention(query * 1.5, *args, **kwargs)


def test_a_subclass_that_computes_otherwise_is_not_verified():
    layer = Biased(2, 7)
    layer.build((ITEMS, TOKENS, WIDTH), (ITEMS, TOKENS, WIDTH))
    sharpened(layer)
    x = normal(ITEMS, TOKENS, WIDTH)
    with regard.record(layer) as seen:
        layer(x, x)
    assert not seen.check().verified


def test_a_gate_leaves_weights_as_they_are():
    layer = layer_alone(use_gate=True)
    x, y = normal(ITEMS, TOKENS, WIDTH), normal(ITEMS, SOURCE, WIDTH, seed=1)
    with regard.record(layer) as seen:
        _, scores = layer(x, y, return_attention_scores=True)
    close(seen.layers[0].weights[:], numbers(scores))
    assert seen.check().verified


def test_gradients_flow_while_our_kernel_computes():
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    layer = layer_alone()
    x, y = tf.constant(normal(ITEMS, TOKENS, WIDTH)), tf.constant(normal(ITEMS, SOURCE, WIDTH))
    found = []
    for engine in ("model", "regard"):
        with regard.record(layer, engine=engine), tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, y) ** 2)
        found.append(numbers(tape.gradient(loss, x)))
    np.testing.assert_allclose(*found, atol=1e-4 * abs(found[0]).max())


# ------------------------------------------------------------------ views, files, other backends


class Class(theirs.Layer):
    """Puts a token before the patches."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")

    def call(self, x):
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1)


@pytest.mark.parametrize("marked", [True, False])
def test_patches_of_an_image_are_named_by_row_and_column(marked):
    image = keras.Input((24, 40, 3), name="image")
    x = theirs.Conv2D(WIDTH, 8, strides=8, name="patches")(image)
    x = theirs.Reshape((15, WIDTH))(x)
    x = Class()(x) if marked else x
    x = x + theirs.MultiHeadAttention(num_heads=2, key_dim=7, name="first")(x, x)
    model = sharpened(keras.Model(image, theirs.Dense(3)(x)))
    before = ["[CLS]"] if marked else []
    grid = [f"{row},{column}" for row in range(3) for column in range(5)]
    images = normal(ITEMS, 24, 40, 3)
    plain = numbers(model(images))
    with regard.record(model) as seen:
        assert np.array_equal(numbers(model(images)), plain)
    assert seen.tokens == [before + grid] * ITEMS
    assert seen.run.tokens["encoder"].grid == (3, 5)
    assert len(seen.item(1).reads("2,4")) == 14
    assert seen.check().verified
    with regard.record(model) as seen:
        model.predict(images, batch_size=2, verbose=0)
    assert {run.tokens["encoder"].grid for run in seen.runs} == {(3, 5)}
    with regard.record(model) as seen:
        model.predict(images[[0, 1, 2, 0]], batch_size=2, verbose=0)
    assert (seen.run.items, seen.run.tokens["encoder"].grid) == (4, (3, 5))


def test_views_and_files(tmp_path):
    model, tokens = encoder(), ids(lengths=LENGTHS)
    with regard.record(model) as seen:
        model.predict(tokens, verbose=0)
    seen.tokens = [[f"t{n}" for n in row] for row in tokens]
    seen.save(tmp_path / "keras.regard")
    for one in (seen, regard.load(tmp_path / "keras.regard")):
        assert "t" in one.item(1).to_terminal()
        assert one.check().verified
        one.item(0).to_html(tmp_path / "page.html")
        assert "t1" in (tmp_path / "page.html").read_text()
        assert one.item(0).to_figure() is not None
        assert len(one.heads()) == 10
        assert len(one.edges(top=5)) == 5


def test_recording_loads_no_keras_for_others():
    code = (
        "import sys, regard.recording.capture; assert not {'keras', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_starts_the_other_backends(backend):
    if BACKEND != "tensorflow":
        return
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "each"],
        capture_output=True,
        text=True,
        timeout=600,
        # XLA takes long to compile many small operations well; that is not what is tested.
        env={"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        | os.environ
        | {"KERAS_BACKEND": backend},
        cwd=HERE.parent,
    )
    assert done.returncode == 0, done.stdout[-6000:]
