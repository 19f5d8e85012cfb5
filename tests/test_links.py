"""How words read words, against the definition written out in loops over dense weights."""

import numpy as np
import pytest
import torch
from embedded import BANK, recorded
from tiny import ids, padded, tiny

from regard.recording import strongest
from regard.recording.capture import record
from regard.recording.links import LINK, rank

TOKENS = ["the", "un", "##like", "##ly", "cat", "and", "dog", "##s", "eat", "fish", "now"]
FIELDS = ("item", "layer", "head", "query", "key", "weight", "baseline", "by_distance")


def with_tokens(name, tokens=TOKENS, **options):
    model = tiny(name)
    with torch.no_grad(), record(model, **options) as seen:
        model(ids(1, len(tokens)))
    seen.tokens = tokens
    return seen


def mean(values):
    return np.mean(values) if values else np.nan


def expected(weights, allowed, reader, read):
    """weight, baseline and by_distance of one link, from one head's dense weights."""
    rows, keys = weights.shape
    others = [r for r in range(rows) if r not in reader]
    weight = np.mean([sum(weights[q, k] for k in read) for q in reader])
    baseline = sum(mean([weights[r, k] for r in others if allowed[r, k]]) for k in read)
    by_distance = np.mean(
        [
            sum(
                mean(
                    [
                        weights[r, r + k - q]
                        for r in others
                        if 0 <= r + k - q < keys and allowed[r, r + k - q]
                    ]
                )
                for k in read
            )
            for q in reader
        ]
    )
    return weight, baseline, by_distance


@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM"])
def test_every_link_is_what_its_definition_says(name):
    seen = with_tokens(name)
    groups = [word.positions for word in seen.words()]
    assert groups == [(0,), (1, 2, 3), (4,), (5,), (6, 7), (8,), (9,), (10,)]
    links = seen.edges(None)
    assert links.dtype == LINK
    assert links.dtype.names == FIELDS
    found = {tuple(link[n] for n in FIELDS[1:5]): link for link in links}
    causal, count = name.startswith("Llama"), 0
    for layer in seen.layers:
        weights, allowed = layer.weights[0].astype(float), layer.allowed[0]
        for head in range(len(weights)):
            for reader in groups:
                for read in groups[1:] if causal else groups:  # the first stands for a start token
                    key = (layer.number, head, reader[0], read[0])
                    possible = allowed[head][np.ix_(reader, read)].any()
                    assert (key in found) == (reader != read and possible)
                    if key in found:
                        given = [found[key][n] for n in FIELDS[5:]]
                        np.testing.assert_allclose(
                            given, expected(weights[head], allowed[head], reader, read), atol=1e-6
                        )
                        count += 1
    assert count == len(links)


@pytest.mark.parametrize("by", ["lift", "weight"])
def test_edges_are_the_best_of_all(by):
    seen = with_tokens("LlamaForCausalLM")
    every = rank(seen.edges(None, by), by)
    some = rank(seen.edges(7, by), by)
    assert np.array_equal(every[:7], some)
    ranked = every[~np.isnan(every)]
    assert np.array_equal(ranked, np.sort(ranked)[::-1])
    assert np.isnan(every[len(ranked) :]).all()
    only = seen.edges(None, by, layer=1, head=4)
    assert set(only["layer"]) == {1}
    assert set(only["head"]) == {4}


@pytest.mark.parametrize("by", ["lift", "weight"])
@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM"])
def test_the_best_links_are_found_without_all_others(name, by, monkeypatch):
    seen = with_tokens(name)
    walked, every = [], strongest._every
    monkeypatch.setattr(strongest, "_every", lambda *given: walked.append(1) or every(*given))
    for top in (1, 3, 17, 60, 10_000):
        for some in ({}, {"layer": 1}, {"layer": 0, "head": 2}):
            monkeypatch.setattr(strongest, "FEW", 1 << 19)
            expected = seen.edges(top, by, **some)
            monkeypatch.setattr(strongest, "FEW", -1)
            walked.clear()
            found = seen.edges(top, by, **some)
            assert str(found) == str(expected)  # also where there is NaN
            if top in (1, 3, 10_000):  # in between either may be the shorter way
                assert bool(walked) == (top == 10_000)


@pytest.mark.parametrize("by", ["lift", "weight"])
def test_reads_and_read_by_are_edges_seen_from_a_word(by):
    seen = with_tokens("BertModel")
    edges = seen.edges(None, by)
    for word, at in (("unlikely", 1), ("dogs", 6), ("now", 10)):
        for method, own, other in (("reads", "query", "key"), ("read_by", "key", "query")):
            among = edges[edges[own] == at]
            _, first = np.unique(among[other], return_index=True)
            found = getattr(seen, method)(word, by)
            assert str(found) == str(among[np.sort(first)])  # also where there is NaN
            heads = getattr(seen, method)(seen[word], by, each="head")
            assert len(heads) == 2 * 3  # always all heads
            for link in heads:
                same = (among["layer"] == link["layer"]) & (among["head"] == link["head"])
                assert link["weight"] == among[same]["weight"].max()
            assert np.array_equal(rank(heads, by), np.sort(rank(heads, by))[::-1], equal_nan=True)


def test_words_found_side_by_side_and_what_they_overlap():
    seen = with_tokens("BertModel")
    both = seen["cat and"]
    assert both.positions == (4, 5)
    links = seen.reads(both, each="head")
    assert set(links["query"]) == {4}
    assert not {4, 5} & set(seen.reads(both)["key"])
    weights, allowed = seen.layers[0].weights[0].astype(float), seen.layers[0].allowed[0]
    for link in links[links["layer"] == 0]:
        read = next(w.positions for w in seen.words() if w.positions[0] == link["key"])
        wanted = expected(weights[link["head"]], allowed[link["head"]], (4, 5), read)
        np.testing.assert_allclose([link[n] for n in FIELDS[5:]], wanted, atol=1e-6)


def test_padding_plays_no_part():
    model, inputs = tiny("LlamaForCausalLM"), padded("left")
    with torch.no_grad(), record(model) as seen:
        model(**inputs)
        whole = seen.edges(None)
        model(inputs["input_ids"][1:2, 4:])
        alone = seen.edges(None)
    among = whole[whole["item"] == 1]
    assert set(among["key"]) <= set(range(4, 11))
    assert len(among) == len(alone)
    order = ["layer", "head", "query", "key"]
    among, alone = np.sort(among, order=order), np.sort(alone, order=order)
    for name in order:
        assert np.array_equal(among[name], alone[name] + (4 if name in ("query", "key") else 0))
    for name in FIELDS[5:]:
        np.testing.assert_allclose(among[name], alone[name], atol=2e-6)


def test_what_stands_first_in_a_causal_model_is_never_ranked():
    seen = with_tokens("LlamaForCausalLM")
    assert seen.special().tolist() == [True] + [False] * 10
    assert 0 not in seen.edges(None)["key"]
    assert seen["the"].positions == (0,)  # but it can be asked about
    assert len(seen.read_by("the")) == 7
    assert len(seen.reads("the")) == 0  # nothing stands before it


def test_special_tokens_are_never_ranked():
    seen = recorded(BANK)
    size = len(seen.tokens[0])
    links = seen.edges(None)
    assert not {0, size - 1} & {*links["key"], *links["query"]}


def test_the_numbers_of_the_two_sentences():
    """Measured beforehand with eager attention; they must come out by computing."""

    def said(links, seen):
        lift = rank(links, "lift")
        return [
            (seen.tokens[0][x["key"]], round(float(y), 2)) for x, y in zip(links, lift, strict=True)
        ]

    seen = recorded()
    assert said(seen.reads("it"), seen)[:4] == [
        ("tired", 0.64),
        ("was", 0.53),
        ("because", 0.39),
        ("cat", 0.31),
    ]
    bank = recorded(BANK)
    first = bank.reads("bank")[0]
    assert said(bank.reads("bank")[:2], bank) == [("deposit", 0.58), ("money", 0.21)]
    assert (first["layer"], first["head"]) == (0, 4)
    heads = {(x["layer"], x["head"]): x for x in seen.reads("it", each="head")}
    assert len(heads) == 72
    for place, weight, baseline in (((5, 11), 0.71, 0.64), ((3, 1), 0.49, 0.13)):
        link = heads[place]
        assert seen.tokens[0][link["key"]] == "cat"
        assert round(float(link["weight"]), 2) == weight
        assert round(float(link["baseline"]), 2) == baseline
    cat = next(x for x in seen.reads("it") if seen.tokens[0][x["key"]] == "cat")
    assert (cat["layer"], cat["head"]) == (3, 1)


def test_what_cannot_be_asked():
    seen = with_tokens("BertModel")
    for wrong in ({"by": "size"}, {"each": "layer"}, {"layer": 9}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            seen.reads("cat", **wrong)
    with pytest.raises(KeyError):
        seen.reads("bird")
    with pytest.raises(TypeError):
        seen[3]
    assert "cat" in seen
    assert "bird" not in seen
    assert 3 not in seen


def test_tokens_can_be_set():
    seen = with_tokens("BertModel")
    assert seen.tokens == [TOKENS]
    with pytest.raises(ValueError, match=r"expected 1 lists of 11, received lengths \[2\]"):
        seen.tokens = ["a", "b"]
    seen.tokens = [["x"] * 11]
    assert len(seen.words()) == 11


# ------------------------------------------------------------------ spans and rollout


@pytest.mark.parametrize("name", ["BertModel", "LlamaForCausalLM"])
def test_spans_are_sums_over_keys_and_means_over_queries(name):
    seen = with_tokens(name)
    spans = {"start": (0, 4), "dogs": seen["dogs"], "end": [8, 9, 10]}
    table = seen.spans(spans)
    assert table.dtype.names == ("layer", "head", "from", "to", "weight", "baseline")
    positions = {"start": [0, 1, 2, 3], "dogs": [6, 7], "end": [8, 9, 10]}
    assert len(table) == sum(len(layer.heads) for layer in seen.layers) * 9
    for row in table:
        layer = seen.layer(row["layer"])
        weights = layer.weights[0, row["head"]].astype(float)
        allowed = layer.allowed[0, row["head"]]
        rows, keys = positions[row["from"]], positions[row["to"]]
        assert row["weight"] == pytest.approx(weights[np.ix_(rows, keys)].sum(-1).mean(), abs=1e-6)
        outside = [r for r in range(11) if r not in rows]
        means = [mean([weights[r, k] for r in outside if allowed[r, k]]) for k in keys]
        assert row["baseline"] == pytest.approx(
            np.nan if np.isnan(means).all() else np.nansum(means), abs=1e-6, nan_ok=True
        )
    with pytest.raises(ValueError, match="'none': no token of the text is in it"):
        seen.spans({"none": (4, 4)})


def test_rollout_is_the_product_of_the_mixed_layers():
    for name in ("BertModel", "LlamaForCausalLM"):
        seen = with_tokens(name)
        found = seen.rollout("dogs")
        assert found.shape == (len(seen.layers), 11)
        product = np.eye(11)
        for n, layer in enumerate(seen.layers):
            product = (np.eye(11) + layer.weights[0].astype(float).mean(axis=0)) / 2 @ product
            np.testing.assert_allclose(found[n], product[[6, 7]].mean(axis=0), atol=1e-6)
