"""Images and several sequences: patches by row and column, towers side by side, stages."""

import numpy as np
import pytest
import torch
import transformers as hf
from test_modules import VisionAttention
from tiny_models import BERT, KINDS, LLAMA, pixels
from torch import nn

from regard.recording.capture import record
from regard.recording.file import load

hf.logging.set_verbosity_error()
VISION = BERT | {"image_size": 24, "patch_size": 8}
TEXT = BERT | {"vocab_size": 97, "max_position_embeddings": 20}
WIDE = torch.randn(2, 3, 24, 40, generator=torch.manual_seed(1))
IDS = torch.arange(3, 14)[None] + torch.tensor([[0], [60]])
GRID = [f"{row},{column}" for row in range(3) for column in range(5)]


@torch.no_grad()
def recorded(model, **inputs):
    model.eval()
    plain = model(**inputs)[0]
    with record(model) as seen:
        assert torch.equal(model(**inputs)[0], plain)
    assert seen.check().verified
    assert seen.unrecorded == {}
    return seen


@pytest.mark.parametrize(
    ("model", "before"),
    [
        (lambda: hf.ViTModel(hf.ViTConfig(**VISION)), ["[CLS]"]),
        (lambda: hf.DeiTModel(hf.DeiTConfig(**VISION)), ["[CLS]", "[+1]"]),
        (
            lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**VISION)),
            ["[CLS]", "[+1]", "[+2]", "[+3]", "[+4]"],
        ),
    ],
    ids=["vit", "deit", "registers"],
)
def test_patches_are_named_by_row_and_column(model, before, tmp_path):
    seen = recorded(model(), pixel_values=WIDE, interpolate_pos_encoding=True)
    assert seen.tokens == [before + GRID] * 2
    assert seen.run.tokens["encoder"].grid == (3, 5)
    assert seen.special(1).tolist() == [n < len(before) for n in range(len(before) + 15)]
    assert seen["2,4:2"].item == 1
    assert len(seen.item(0).reads("2,4")) == 14
    assert set(seen.edges()["key"]) <= set(range(len(before), len(before) + 15))
    assert seen.item(1).run.tokens["encoder"].grid == (3, 5)
    seen.save(tmp_path / "image.regard")
    again = load(tmp_path / "image.regard")
    assert again.run.tokens["encoder"].grid == (3, 5)
    assert again.tokens == seen.tokens
    assert str(again.heads()) == str(seen.heads())


class Timm(nn.Module):
    """As timm writes a vision transformer: a convolution of patches, a token before them."""

    def __init__(self):
        super().__init__()
        self.patch_embed, self.cls = nn.Conv2d(3, 14, 8, 8), nn.Parameter(torch.randn(1, 1, 14))
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": VisionAttention()}) for _ in range(2))

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = x + block["attn"](x)
        return x


def test_a_vision_transformer_written_by_hand():
    assert recorded(Timm(), x=WIDE).tokens == [["[CLS]", *GRID]] * 2


def test_a_tower_for_images_beside_one_for_texts(tmp_path):
    model = hf.SiglipModel(hf.SiglipConfig(text_config=TEXT, vision_config=VISION))
    image = pixels(24)
    for ids in (IDS, IDS[:, :9]):  # also as many tokens as patches
        seen = recorded(model, input_ids=ids, **image)
        assert seen.tokens == [[str(n) for n in row] for row in ids.tolist()]
        kinds = {layer.name.split(".")[0]: layer.kind for layer in seen.layers[-2:]}
        assert kinds == {"text_model": "encoder 2"}
        assert len({x.number for x in seen.layers if x.kind == "encoder"}) == 2
        assert seen.run.tokens["encoder"].grid == (3, 3)
        assert seen.item(0).layers[0].key_labels[:4] == ["0,0", "0,1", "0,2", "1,0"]
        assert len(seen.heads()) == 5 * 6  # two layers each, and the image's pooling
        seen.save(tmp_path / "two.regard")
        again = load(tmp_path / "two.regard")
        assert again.tokens == seen.tokens
        assert str(again.edges()) == str(seen.edges())


def test_an_image_before_a_text():
    vision, text = hf.CLIPVisionConfig(**VISION), hf.LlamaConfig(**LLAMA)
    model = hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=96,
            image_seq_length=9,
            vision_feature_layer=-1,
        )
    )
    ids = torch.cat([IDS[:, :3], torch.full((2, 9), 96), IDS[:, 3:]], 1)
    seen = recorded(model, input_ids=ids, **pixels(24))
    assert seen.tokens[1] == [str(n) for n in ids[1].tolist()]
    assert {(x.kind, x.shape[-1]) for x in seen.layers} == {("encoder", 10), ("decoder", 20)}
    assert seen.item(1).layer(0, "encoder").key_labels[0] == "[CLS]"


def test_windows_of_an_image_in_stages(tmp_path):
    config = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[3, 6], window_size=4
    )
    seen = recorded(hf.SwinModel(config), **pixels(32))
    found = [(layer.kind, layer.number, layer.shape) for layer in seen.layers]
    assert found == [
        ("encoder", 0, (8, 3, 16, 16)),
        ("encoder", 1, (8, 3, 16, 16)),
        ("encoder 2", 2, (2, 6, 16, 16)),
        ("encoder 2", 3, (2, 6, 16, 16)),
    ]
    table = seen.heads()
    assert [(row["layer"], row["head"]) for row in table] == [
        (layer.number, head) for layer in seen.layers for head in range(len(layer.heads))
    ]
    for layer in seen.layers:  # the mean of all windows of that layer
        rows = table[table["layer"] == layer.number]
        assert np.allclose(rows["entropy"], layer.entropy().mean(axis=(0, 2)), atol=1e-5)
    assert [len(seen.item(n).layers) for n in (0, 1, 2, 7)] == [4, 4, 2, 2]
    seen.save(tmp_path / "swin.regard")
    assert str(load(tmp_path / "swin.regard").heads()) == str(table)


def test_keys_of_several_sequences(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.other = (
                nn.MultiheadAttention(14, 2, batch_first=True) for _ in range(2)
            )

        def forward(self, x, y, z):
            x = self.self_attn(x, x, x)[0]
            return self.other(x, y, y)[0] + self.other(x, z, z)[0]

    x, y, z = (torch.randn(2, n, 14) for n in (11, 7, 5))
    model = Odd().eval()
    with torch.no_grad(), record(model) as seen:
        model(x, y, z)
    seen.save(tmp_path / "odd.regard")
    for one in (seen, load(tmp_path / "odd.regard")):
        found = [(layer.kind, layer.shape[-2:]) for layer in one.layers]
        assert found == [("encoder", (11, 11)), ("cross 2", (11, 7)), ("cross 3", (11, 5))]
        assert len(one.tokens[0]) == 11
        assert np.isnan(one.heads()["distance"]).tolist() == [False] * 2 + [True] * 4
        assert one.item(1).layer(1, "cross 2").shape == (2, 11, 7)


def test_vectors_that_read_an_input_and_then_themselves():
    class Latents(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(1, 5, 14))
            self.reads, self.mixes = (
                nn.MultiheadAttention(14, 2, batch_first=True) for _ in range(2)
            )

        def forward(self, x):
            latents = self.latents.expand(len(x), -1, -1)
            latents = self.reads(latents, x, x)[0]
            return self.mixes(latents, latents, latents)

    seen = recorded(Latents(), x=torch.randn(2, 11, 14))
    found = [(layer.kind, layer.shape[-2:]) for layer in seen.layers]
    assert found == [("cross", (5, 11)), ("encoder 2", (5, 5))]
    assert len(seen.tokens[0]) == 5
    assert len(seen.heads()) == 4


def test_kinds_of_images_have_grids():
    for name, grid in {"vit": (3, 3), "clip_vision": (3, 3), "swin": None, "bert": None}.items():
        model, inputs = KINDS[name]()
        assert recorded(model, **inputs).run.tokens["encoder"].grid == grid, name
