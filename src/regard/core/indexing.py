"""NumPy's indexing over pairs that are computed when asked for: `look.weights[0, 3, 8]`.

An index is first turned into coordinates: for each axis an array of positions, all of which
broadcast to the shape of the answer. Then the smallest rectangles that hold those positions are
computed, a few MiB at a time.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard.core.arguments import Array
from regard.core.call import Call
from regard.core.tiles import TILE_BYTES, Part, part, runs

if TYPE_CHECKING:
    from regard.core.look import Look

# Computing so many unwanted weights costs about as much as one more call into the kernel.
CHEAP = 4096
# So many scattered pairs are sorted at once.
PAIRS = 1 << 20


def positions_of(value: Any, size: int, name: str) -> Array:
    """The positions that an int, a slice, a Word or a 1-D list means, in its order; 0-d for an int.

    >>> positions_of(slice(-2, None), 7, "keys").tolist()
    [5, 6]
    """
    if isinstance(value, tuple):
        value = list(value)
    if value is not Ellipsis:
        (positions,), shape = mesh((value,), (size,), (name,))
        if len(shape) < 2:
            return positions.reshape(shape)
    raise IndexError(
        f"{name}: expected an int, a slice, a Word or a list of positions, received {value!r}"
    )


def position_of(value: Any, size: int, name: str) -> int:
    """The one position that is meant."""
    positions = positions_of(value, size, name)
    if positions.size != 1:
        raise IndexError(f"{name}: expected one position, received {positions.tolist()}")
    return int(positions.reshape(-1)[0])


def mesh(
    index: Any, shape: tuple[int, ...], names: tuple[str, ...]
) -> tuple[list[Array], tuple[int, ...]]:
    """The coordinates that a NumPy-style index means, one array an axis, and the answer's shape.

    They have as many axes as the answer and broadcast to its shape. A Word (anything with
    `.positions`) stands for its positions the way a slice does: it keeps an axis of its own.

    >>> (rows, keys), shape = mesh((slice(1, 3), [0, 4]), (3, 5), ("query", "key"))
    >>> rows.tolist(), keys.tolist(), shape
    ([[1], [2]], [[0, 4]], (2, 2))
    """
    own: list[tuple[int, Array]] = []  # axes that keep an axis of their own, and their positions
    joined: list[tuple[int, Array]] = []  # axes that share the axes of the index arrays
    places: list[int] = []  # where in the index those stand
    arrays = False
    for place, entry in enumerate(_entries(index, len(shape))):
        axis = len(own) + len(joined)
        if entry is Ellipsis:
            continue  # it stands for no axis, yet it parts index arrays, as in NumPy
        if isinstance(entry, slice):
            own.append((axis, np.arange(shape[axis])[entry]))
        elif hasattr(entry, "positions"):
            positions = np.asarray(entry.positions, np.intp).reshape(-1)
            own.append((axis, _inside(positions, shape[axis], names[axis])))
        else:
            chosen = [entry]
            if entry.dtype == bool:
                chosen = _chosen(entry, shape[axis : axis + entry.ndim], names[axis])
            for more, array in enumerate(chosen):
                joined.append((axis + more, _inside(array, shape[axis + more], names[axis + more])))
            places.append(place)
            arrays |= entry.ndim > 0
    try:
        common = np.broadcast_shapes(*(array.shape for _, array in joined))
    except ValueError:
        shapes = " and ".join(str(array.shape) for _, array in joined)
        raise IndexError(f"index arrays do not broadcast to one shape: {shapes}") from None
    # NumPy's rule: index arrays that stand side by side put their axes there, others in front.
    side_by_side = arrays and places[-1] - places[0] == len(places) - 1
    before = sum(axis < joined[0][0] for axis, _ in own) if side_by_side else 0

    sizes = [len(positions) for _, positions in own]
    answer = (*sizes[:before], *common, *sizes[before:])
    coordinates: list[Array] = [np.empty(0)] * len(shape)
    for number, (axis, positions) in enumerate(own):
        at = number + (len(common) if number >= before else 0)
        coordinates[axis] = positions.reshape([-1 if i == at else 1 for i in range(len(answer))])
    for axis, array in joined:
        lead = (1,) * (before + len(common) - array.ndim)
        tail = (1,) * (len(answer) - before - len(common))
        coordinates[axis] = array.reshape(lead + array.shape + tail)
    return coordinates, answer


def _entries(index: Any, axes: int) -> list[Any]:
    """The index as slices, Words, and arrays of ints or booleans that take all axes together."""
    given = index if isinstance(index, tuple) else (index,)
    entries = [_entry(entry) for entry in given]
    dots = sum(entry is Ellipsis for entry in entries)
    taken = sum(_taken(entry) for entry in entries)
    if dots > 1:
        raise IndexError("an index can hold only one Ellipsis (...)")
    if taken > axes:
        raise IndexError(f"too many indices: there are {axes} axes, received {taken}")
    rest: list[Any] = [slice(None)] * (axes - taken)
    if not dots:
        return entries + rest
    at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
    return entries[:at] + (rest or [...]) + entries[at + 1 :]


def _taken(entry: Any) -> int:
    """How many axes an entry of an index takes."""
    if entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == bool else 1


def _entry(entry: Any) -> Any:
    if entry is None:
        raise IndexError("None (np.newaxis) adds no axis here: take the part, then reshape it")
    if entry is Ellipsis or isinstance(entry, slice) or hasattr(entry, "positions"):
        return entry
    if not isinstance(entry, bool):
        try:
            return np.array(operator.index(entry))
        except TypeError:
            pass
    array = np.asarray(entry)
    if array.size == 0 and not hasattr(entry, "dtype"):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iu" and not (array.dtype == bool and array.ndim):
        raise IndexError(
            "an index holds ints, slices, Words, Ellipsis, or arrays of ints or booleans; "
            f"received {entry!r}"
        )
    return array


def _chosen(array: Array, sizes: tuple[int, ...], name: str) -> list[Array]:
    if array.shape != sizes:
        raise IndexError(
            f"{name}: a boolean index takes the shape of its axes, {sizes}, received {array.shape}"
        )
    return list(np.nonzero(array))


def _inside(positions: Array, size: int, name: str) -> Array:
    """The positions counted from 0, all of them within the axis."""
    outside = (positions < -size) | (positions >= size)
    if outside.any():
        raise IndexError(
            f"{name}: position {positions[outside].flat[0]} is outside of the axis of {size}"
        )
    return np.where(positions < 0, positions + size, positions).astype(np.intp)


# ------------------------------------------------------------------ from coordinates to numbers


# What is shown of every pair: the part of a call, some of its rows, some keys -> their numbers.
Tile: TypeAlias = Callable[[Part, slice, slice], Array]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every pair of row and key of a call, none of them computed yet."""

    call: Call
    lse: Array
    tile: Tile
    dtype: np.dtype[Any]

    def at(self, coordinates: list[Array]) -> Array:
        """The numbers at these coordinates: of the batch axes, the head, the row and the key."""
        *outer, keys = coordinates
        lines = np.zeros_like(outer[0])  # each row of each head of each item has a number
        for positions, size in zip(outer, self.call.shape[:-1], strict=True):
            lines = lines * size + positions
        shape = np.broadcast_shapes(lines.shape, keys.shape)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        line_axes = [axis for axis, size in enumerate(lines.shape) if size > 1]
        key_axes = [axis for axis, size in enumerate(keys.shape) if size > 1]
        if set(line_axes) & set(key_axes):
            out = np.empty(shape, self.dtype)
            self._scattered(np.broadcast_to(lines, shape), np.broadcast_to(keys, shape), out)
            return out
        # Each line with each key: a grid, perhaps with some in another order, or repeated.
        if _rise(lines) and _rise(keys) and max(line_axes, default=-1) < min(key_axes, default=99):
            return self._grid(lines.reshape(-1), keys.reshape(-1)).reshape(shape)
        some_lines, line = np.unique(lines, return_inverse=True)
        some_keys, key = np.unique(keys, return_inverse=True)
        return self._grid(some_lines, some_keys)[line.reshape(lines.shape), key.reshape(keys.shape)]

    def _scattered(self, lines: Array, keys: Array, out: Array) -> None:
        """Pairs that form no grid: as many grids, each of which holds little but what is wanted."""
        if out.size > PAIRS:
            axis = int(np.argmax(out.shape))
            halves = (np.array_split(array, 2, axis) for array in (lines, keys, out))
            for half in zip(*halves, strict=True):
                self._scattered(*half)
            return
        lines, keys = lines.reshape(-1), keys.reshape(-1)
        numbers = np.empty(out.size, self.dtype)
        order = np.argsort(lines, kind="stable")
        rising = lines[order]
        ends = np.flatnonzero(np.diff(rising, append=-1)) + 1  # where the pairs of a line end
        pieces = [(a, min(a + 64, len(ends))) for a in range(0, len(ends), 64)]
        while pieces:
            a, b = pieces.pop()
            chosen = order[ends[a - 1] if a else 0 : ends[b - 1]]
            some_lines, line = np.unique(lines[chosen], return_inverse=True)
            some_keys, key = np.unique(keys[chosen], return_inverse=True)
            if b - a > 1 and len(some_lines) * len(some_keys) > max(CHEAP, 4 * len(chosen)):
                pieces += [(a, (a + b) // 2), ((a + b) // 2, b)]
            else:
                numbers[chosen] = self._grid(some_lines, some_keys)[line, key]
        out[...] = numbers.reshape(out.shape)

    def _grid(self, lines: Array, keys: Array) -> Array:
        """Each of these lines with each of these keys, both rising."""
        heads, rows = self.call.shape[-3:-1]
        out = np.empty((len(lines), len(keys)), self.dtype)
        stretches = runs(keys, gap=64)
        width = max(past - first for _, _, first, past in stretches)
        height = max(1, TILE_BYTES // (width * self.dtype.itemsize))
        for begin, end, number, _ in runs(lines // rows, gap=0):
            item = np.unravel_index(number // heads, self.call.batch)
            one = part(self.call, self.lse, tuple(map(int, item))).head(number % heads)
            own = lines[begin:end] - number * rows
            for a, b, first, past in runs(own, gap=max(1, CHEAP // width)):
                for top in range(first, past, height):
                    bottom = min(top + height, past)
                    i, j = (a + np.searchsorted(own[a:b], [top, bottom])).tolist()
                    for k, m, left, right in stretches:
                        tile = self.tile(one, slice(top, bottom), slice(left, right))[0]
                        # Whole rows and columns are several times as fast as picked ones.
                        tile = tile if j - i == bottom - top else tile[own[i:j] - top]
                        tile = tile if m - k == right - left else tile[:, keys[k:m] - left]
                        out[begin + i : begin + j, k:m] = tile
        return out


def refuse_over(limit: int, what: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse an answer that is larger than the limit, and say how large it would be."""
    size = math.prod(shape) * itemsize
    if size > limit:
        raise ValueError(
            f"{what} of shape {shape} would take {size_in_words(size)}, more than the limit of "
            f"{size_in_words(limit)}: ask for a smaller part, or set .limit (in bytes)"
        )


def size_in_words(size: int) -> str:
    """A number of bytes as people say it.

    >>> size_in_words(3 * 2**29)
    '1.5 GiB'
    """
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size} bytes" if power == 0 else f"{size / 1024**power:.1f} {units[power]}"


def _rise(positions: Array) -> bool:
    """Whether each position is higher than the one before."""
    flat = positions.reshape(-1)
    return bool((flat[1:] > flat[:-1]).all())


class View:
    """One number for every pair of query and key, computed where it is asked for.

    Indexed as a NumPy array of shape (B…, H, T, S), it returns that part as one; a `Word` stands
    for its positions. Nothing is kept.
    """

    def __init__(self, look: "Look", name: str, tile: Tile, dtype: Any):
        self._look = look
        self._name = name
        self._pairs = Pairs(look.call, look._lse, tile, np.dtype(dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """(B…, H, T, S)."""
        return self._look.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the answers."""
        return self._pairs.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        coordinates, answer = mesh(index, self.shape, self._look.axes)
        refuse_over(self._look.limit, f"{self._name}[...]", answer, self.dtype.itemsize)
        if len(coordinates) < 3:  # a call without a head axis
            coordinates = [np.zeros_like(coordinates[0]), *coordinates]
        numbers: Array = self._pairs.at(coordinates)[()]
        return numbers

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                f"{self._name} is computed when asked for, so it is always a new array"
            )
        return self[...].astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return (
            f"{self._name} of shape {self.shape}, {self.dtype}, not computed yet: "
            f"take a part, {self._name}[{', '.join(self._look.axes)}]"
        )
