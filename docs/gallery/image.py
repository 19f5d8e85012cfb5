"""Draws what an image model reads: a small picture and a small model whose heads are known.

The model is made by hand so that its heads read by colour and by place (run it: python
docs/gallery/image.py).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from regard.recording.capture import record
from regard.recording.recording import Recording
from regard.views.figure import save

SIDE, PATCH = 192, 16
COUNT = SIDE // PATCH
WIDTH = 16
COLOUR, PLACE, ACROSS = slice(0, 3), slice(3, 15), slice(9, 15)  # what a patch's numbers are about
TURNS = np.pi * np.array([1.0, 2.0, 3.0]) / COUNT  # angle from one row or column to the next


def picture() -> np.ndarray:
    """A house on a hill under the sun, (height, width, 3) floats."""
    down, across = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    sky = np.stack([0.55 + 0.3 * down, 0.72 + 0.15 * down, 0.95 - 0.05 * down], -1)
    hill = down > 0.72 - 0.14 * np.sin(np.pi * (across * 1.1 - 0.05))
    house = (abs(across - 0.63) < 0.13) & (abs(down - 0.56) < 0.1)
    roof = (down > 0.33) & (down < 0.46) & (abs(across - 0.63) < 1.35 * (down - 0.32))
    door = (abs(across - 0.63) < 0.035) & (down > 0.53) & (down < 0.66)
    sun = (across - 0.25) ** 2 + (down - 0.25) ** 2 < 0.017
    for part, colour in (
        (sun, (1.0, 0.84, 0.25)), (hill, (0.38, 0.56, 0.27)), (house, (0.93, 0.88, 0.78)),
        (roof, (0.70, 0.25, 0.20)), (door, (0.36, 0.22, 0.15)),
    ):  # fmt: skip
        sky[part] = colour
    return sky


def place() -> torch.Tensor:
    """Sines and cosines of the row and of the column of each patch, (COUNT * COUNT, 12)."""
    rows, columns = np.divmod(np.arange(COUNT * COUNT), COUNT)
    waves = [f(n[:, None] * TURNS) for n in (rows, columns) for f in (np.cos, np.sin)]
    return torch.tensor(np.concatenate(waves, -1))


class Heads(nn.Module):
    """Attention whose four heads read by colour and by place."""

    def __init__(self) -> None:
        super().__init__()
        turn = torch.diag_embed(torch.tensor(TURNS))
        cos, sin = turn.cos() * torch.eye(3), turn.sin()
        left = torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])
        beside = torch.block_diag(torch.eye(6), left)  # the same row, a column back
        asked = {
            "colour": (COLOUR, 90 * torch.eye(3)),
            "another colour": (COLOUR, -60 * torch.eye(3)),
            "the patch on its left": (PLACE, 14 * beside),
            "its column": (ACROSS, 10 * torch.eye(6)),
        }
        query, key = torch.zeros(2, len(asked), WIDTH, WIDTH)
        for head, (dims, asks) in enumerate(asked.values()):
            count = dims.stop - dims.start
            query[head, :count, dims], key[head, :count, dims] = asks.float(), torch.eye(count)
        self.query, self.key = nn.Parameter(query), nn.Parameter(key)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of what the heads read."""
        query, key = (x[:, None] @ weight.mT for weight in (self.query, self.key))
        value = x[:, None].expand_as(key)
        return functional.scaled_dot_product_attention(query, key, value).mean(1)


class Eye(nn.Module):
    """A vision transformer: patches with their mean colour and their place, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.start = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.layers = nn.ModuleList(nn.ModuleDict({"attention": Heads()}) for _ in range(2))
        with torch.no_grad():
            for weight in self.patches.parameters():
                weight.zero_()
            self.patches.weight[:3] = torch.eye(3)[:, :, None, None] / PATCH**2
            self.patches.bias[:3] = -0.6

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Read the picture, layer by layer."""
        x = self.patches(image).flatten(2).mT
        x[..., PLACE] = place().float()
        x = torch.cat([self.start.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = (x + layer["attention"](x)) / 2
        return x


def seen() -> Recording:
    """A recording of the picture."""
    image = torch.tensor(picture()).float().permute(2, 0, 1)[None]
    model = Eye().eval()
    with torch.no_grad(), record(model) as recording:
        model(image)
    recording.model = "a vision transformer made by hand"
    return recording


def draw(folder: Path) -> None:
    """Write figures of the picture's patches."""
    recording = seen()
    for name, ground in (("image", "light"), ("image-dark", "dark")):
        figure = recording.to_figure("3,2", image=picture(), ground=ground, top=6)
        save(figure, folder / f"{name}.png")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
