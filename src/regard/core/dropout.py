"""Which weights dropout drops: random numbers that depend on the seed and the place alone."""

import math
import operator

import numpy as np

from regard.core.arguments import Array


def multipliers(shape: tuple[int, ...], dropout: float, seed: int | None) -> Array:
    """Draw what each weight of (B…, H, T, S) is multiplied by: 0, or 1 / (1 - dropout).

    The random number of a weight is the first word of Philox4x32-10 for the counter (batch item,
    head, row, key), where items are numbered in C order, and the key (low, high 32 bits of seed).
    The weight is kept where word / 2³² ≥ dropout.

    >>> print(multipliers((1, 2, 3), 0.5, seed=7))
    [[[2. 2. 0.]
      [0. 2. 0.]]]
    """
    if not dropout:
        return np.ones(shape)
    items = np.arange(math.prod(shape[:-3])).reshape(*shape[:-3], 1, 1, 1)
    heads, rows, keys = (np.arange(size) for size in shape[-3:])
    counter = np.broadcast_arrays(items, heads[:, None, None], rows[:, None], keys)
    number = operator.index(seed or 0)  # NumPy's integers would overflow
    seed_words = number % 2**32, number // 2**32 % 2**32
    word = philox([numbers.astype(np.uint64) for numbers in counter], seed_words)[0]
    return np.where(word / 2**32 >= dropout, 1 / (1 - dropout), 0)


def philox(counter: list[Array], key: tuple[int, int]) -> list[Array]:
    """Philox4x32-10: four random words for a counter of four words and a key of two.

    Words of 32 bits stand in uint64 arrays, NumPy's or another framework's. Source: Salmon, Moraes,
    Dror and Shaw 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    low = 2**32 - 1
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = second // 2**32 ^ c1 ^ k0, second & low
        c2, c3 = first // 2**32 ^ c3 ^ k1, first & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return [c0, c1, c2, c3]
