"""The overview of heads, against the same computed from dense weights in float64."""

import numpy as np
import pytest
import torch
from embedded import recorded
from tiny import ids, padded, tiny

from regard.recording.capture import record

SHARES = ("first", "special", "itself", "previous", "next", "same_token", "induction")


def plain(items):
    """One head's row; items are (weights, allowed, tokens, special), without padding."""
    total = dict.fromkeys((*SHARES, "entropy", "selectivity", "far", "mass"), 0.0)
    rows, heaviest = 0, (-1.0, -1, -1, -1)
    for item, (w, allowed, tokens, special) in enumerate(items):
        size = len(w)
        rows += size
        mean = np.where(allowed, w, 0).sum(0) / np.maximum(allowed.sum(0), 1)
        i, j = np.indices(w.shape)
        share = w / w.sum(1, keepdims=True)
        kept = np.where(allowed, mean, 0)
        kept = kept / kept.sum(1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            total["entropy"] -= np.where(w > 0, w * np.log(w), 0).sum()
            total["selectivity"] += np.where(w > 0, share * np.log(share / kept), 0).sum()
        same = tokens[:, None] == tokens
        for name, where in {
            "first": j == 0,
            "special": np.broadcast_to(special, w.shape),
            "itself": i == j,
            "previous": j == i - 1,
            "next": j == i + 1,
            "same_token": same & (i != j),
            "induction": np.pad(same & (i != j), ((0, 0), (1, 0)))[:, :-1],
        }.items():
            total[name] += w[where].sum()
        total["far"] += (w * abs(i - j)).sum()
        total["mass"] += w.sum()
        links = np.where(special | (i == j), -1, w)
        query, key = np.unravel_index(links.argmax(), w.shape)
        heaviest = max(heaviest, (links.max(), item, query, key), key=lambda found: found[0])
    means = {name: total[name] / rows for name in (*SHARES, "entropy", "selectivity")}
    return means | {"distance": total["far"] / total["mass"]}, heaviest


@pytest.mark.parametrize(
    "name", ["BertModel", "LlamaForCausalLM", "MistralForCausalLM", "GptOssForCausalLM"]
)
def test_every_column_over_a_padded_batch(name):
    model = tiny(name)
    inputs = padded("right" if name == "BertModel" else "left")
    inputs["input_ids"][:, 8] = inputs["input_ids"][:, 5]  # some tokens occur twice
    with torch.no_grad(), record(model) as seen:
        model(**inputs)
    table = seen.heads()
    assert len(table) == sum(len(layer.heads) for layer in seen.layers)
    rows = iter(table)
    for layer in seen.layers:
        for head in range(len(layer.heads)):
            items = []
            for item in range(3):
                real = inputs["attention_mask"][item].bool().numpy()
                special = np.zeros(real.sum(), bool)
                special[0] = name != "BertModel"
                part = np.ix_(real, real)
                weights = layer.weights[item, head].astype(float)[part]
                tokens = inputs["input_ids"][item].numpy()[real]
                items.append((weights, layer.allowed[item, head][part], tokens, special))
            expected, (weight, item, query, key) = plain(items)
            row = next(rows)
            assert (row["layer"], row["head"]) == (layer.number, head)
            for column, value in expected.items():
                assert row[column] == pytest.approx(value, abs=2e-6), column
            before = 0 if name == "BertModel" else 11 - int(inputs["attention_mask"][item].sum())
            assert row["heaviest"] == pytest.approx(weight, abs=1e-6)
            assert (row["item"], row["query"], row["key"]) == (item, query + before, key + before)
            at = layer.weights[row["item"], head, row["query"], row["key"]]
            assert at == pytest.approx(row["heaviest"])


def judged(layer, tokens, special):
    """What `plain` says of a layer of one item, head by head."""
    for weights, allowed in zip(layer.weights[...], layer.allowed[...], strict=True):
        yield plain([(weights.astype(float), allowed, tokens, special)])


def agrees(row, expected):
    columns, (weight, *_) = expected
    for column in columns:
        assert row[column] == pytest.approx(columns[column], abs=2e-6), column
    assert row["heaviest"] == pytest.approx(weight, abs=1e-6)


def test_with_a_bias_and_with_holes_in_the_keys():
    model = tiny("T5ForConditionalGeneration")
    with torch.no_grad(), record(model) as seen:
        model(input_ids=ids(1, 11), decoder_input_ids=ids(2, 7)[1:])
    rows = iter(seen.heads())
    for layer in seen.item(0).layers:
        some = [next(rows) for _ in layer.heads]
        if layer.kind == "cross":  # there no key is the row's own
            continue
        decodes = layer.kind == "decoder"
        tokens = ids(2, 7)[1] if decodes else ids(1, 11)[0]
        special = np.arange(len(tokens)) == (0 if decodes else -1)
        for row, expected in zip(some, judged(layer, tokens.numpy(), special), strict=True):
            agrees(row, expected)

    model, mask = tiny("LlamaForCausalLM"), torch.ones(1, 11, dtype=torch.long)
    mask[0, 3:6] = 0
    with torch.no_grad(), record(model) as seen:
        model(input_ids=ids(1, 11), attention_mask=mask)
    one, rows = seen.item(0), iter(seen.heads())
    tokens, special = ids(1, 11)[0, mask[0].bool()].numpy(), np.arange(8) == 0
    for layer in one.layers:
        for expected in judged(layer, tokens, special):
            agrees(next(rows), expected)


def test_a_text_of_many_blocks_that_repeats_itself():
    model, tokens = tiny("LlamaForCausalLM"), ids(1, 151)
    tokens[0, 89:] = tokens[0, :62]
    with torch.no_grad(), record(model) as seen:
        model(tokens)
    rows, special = iter(seen.heads()), np.arange(151) == 0
    for layer in seen.item(0).layers:
        for expected in judged(layer, tokens[0].numpy(), special):
            row = next(rows)
            agrees(row, expected)
            assert row["induction"] > 0.005


def test_the_table_alone_tells_the_two_heads_apart():
    table = recorded().heads()
    assert len(table) == 72
    by_place = {(row["layer"], row["head"]): row for row in table}
    assert by_place[5, 11]["selectivity"] == pytest.approx(0.07, abs=0.005)
    assert by_place[3, 1]["selectivity"] == pytest.approx(0.50, abs=0.005)
    assert not any(np.isnan(table[name].astype(float)).any() for name in table.dtype.names)


def test_cross_attention_has_no_distances():
    model = tiny("BartForConditionalGeneration")
    with torch.no_grad(), record(model) as seen:
        model(input_ids=ids(1, 7), decoder_input_ids=ids(2, 5)[1:])
    table = seen.heads()
    cross = [layer.kind == "cross" for layer in seen.layers for _ in layer.heads]
    for name in table.dtype.names:
        missing = np.isnan(table[name].astype(float))
        blank = name in (*SHARES[2:], "distance")
        assert missing.tolist() == [blank and here for here in cross], name


def test_as_a_table_of_pandas():
    table = recorded().heads()
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
            table.to_pandas()
    else:
        frame = table.to_pandas()
        assert list(frame.columns) == list(table.dtype.names)
        assert len(frame) == 72


def test_one_row_alone_has_nothing_to_choose():
    model = tiny("GPT2LMHeadModel")
    with torch.no_grad(), record(model) as seen:
        model(ids(1, 1))
    table = seen.heads()
    assert (table["selectivity"] < 1e-7).all()  # the last bit of a sum
    assert (abs(table["entropy"]) < 1e-7).all()
    assert np.isnan(table["heaviest"]).all()
    assert set(table["key"]) == {-1}
