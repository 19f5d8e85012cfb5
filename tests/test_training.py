"""A small model trained on real text: with our attention it learns as it does with PyTorch's."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import _kernel
from regard.torch import scaled_dot_product_attention

TEXT = (Path(__file__).parent.parent / "LICENSE").read_bytes()
STEPS, BATCH, LENGTH, WIDTH, HEADS, LAYERS = 300, 8, 48, 64, 4, 2


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.joint(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = parts.movedim(-3, 0).transpose(-2, -3)
        found = self.attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(-2, -3).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def curve(attention) -> np.ndarray:
    """The loss at each step, with the same weights and the same batches every time."""
    torch.manual_seed(0)
    letters = torch.tensor(list(TEXT))
    model = nn.Sequential(
        nn.Embedding(256, WIDTH), *(Block(attention) for _ in range(LAYERS)), nn.Linear(WIDTH, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(STEPS):
        begins = torch.randint(len(letters) - LENGTH - 1, (BATCH,))
        batch = torch.stack([letters[b : b + LENGTH + 1] for b in begins])
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def test_learns_as_with_pytorchs_own_attention():
    before = _kernel.calls()
    ours = curve(scaled_dot_product_attention)
    ran = [b - a for a, b in zip(before, _kernel.calls(), strict=True)]
    assert ran[:2] == [STEPS * LAYERS] * 2
    flash = curve(functional.scaled_dot_product_attention)
    with sdpa_kernel(SDPBackend.MATH):
        math = curve(functional.scaled_dot_product_attention)
    assert flash[-20:].mean() < 0.6 * flash[:20].mean()  # something was learnt
    assert not np.array_equal(flash, math)
    own = np.abs(flash - math).max()
    assert np.abs(ours - flash).max() <= 10 * own
    assert np.abs(ours - math).max() <= 10 * own
