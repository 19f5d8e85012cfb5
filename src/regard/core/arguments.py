"""Reading one argument: an array or a number, or an error that names it.

Every message says what was expected and what was received. A `ShapeError` is raised where several
arguments do not fit together; `check` in call.py catches it and adds all their shapes.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

FLOAT64, FLOAT32, FLOAT16 = np.dtype("f8"), np.dtype("f4"), np.dtype("f2")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = frozenset({FLOAT64, FLOAT32, FLOAT16, BFLOAT16})


class ShapeError(ValueError):
    """Arguments whose shapes do not fit each other."""


def plain(name: str, given: Any) -> Array:
    """Read anything NumPy can read, but not a masked array: its mask would be lost."""
    # Of a plain array that is known without loading numpy.ma, which takes a third as long as NumPy.
    if type(given) is not np.ndarray and isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: expected a plain array, received a NumPy masked array; "
            "say with mask= what may be attended"
        )
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected an array, received {type(given).__name__}: {error}"
        ) from error


def floating(name: str, given: Any) -> Array:
    """Read an array of one of our dtypes; lists of floats are float64."""
    if type(given) is np.ndarray and given.dtype in FLOATS and given.flags.aligned:
        return given
    array = plain(name, given)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in FLOATS:
        raise TypeError(
            f"{name}: expected float64, float32, bfloat16 or float16, received {kind(given, array)}"
        )
    return native(array, dtype)


def booleans(name: str, given: Any) -> Array:
    """Read an array of booleans; numbers are refused, since their meaning varies."""
    array = plain(name, given)
    if array.dtype != np.bool_:
        raise TypeError(
            f"{name}: expected booleans (True = may attend), received {kind(given, array)}; "
            "numbers to add to the scores go in bias="
        )
    return array


def addends(name: str, given: Any) -> Array:
    """Read an array of floating numbers of any width."""
    array = plain(name, given)
    dtype = array.dtype.newbyteorder("=")
    if dtype in FLOATS:
        return native(array, dtype)
    if not _is_floating(dtype):
        hint = "; booleans go in mask=" if dtype == np.bool_ else ""
        raise TypeError(f"{name}: expected floating numbers, received {kind(given, array)}{hint}")
    # Long double and eight-bit floats. What is finite must stay finite, since -inf excludes.
    wide = array.astype(np.longdouble)
    most = np.finfo(np.float64).max
    return np.where(np.isinf(wide), wide, np.clip(wide, -most, most)).astype(np.float64)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return dtype.kind != "c"


def integers(name: str, given: Any) -> Array:
    """Read an array of integers as int64."""
    array = plain(name, given)
    if array.dtype.kind not in "iu" and (array.size or hasattr(given, "dtype")):
        raise TypeError(f"{name}: expected integers, received {kind(given, array)}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name}: expected integers below 2**63, received {array.max()}")
    return native(array, np.dtype(np.int64))


def integer(name: str, given: Any) -> int:
    """Read one integer of any size."""
    if not isinstance(given, bool | np.bool_):
        try:
            return operator.index(given)
        except TypeError:
            pass
    raise TypeError(f"{name}: expected an integer, received {given!r}")


def number(name: str, given: Any, expected: str, fits: Callable[[float], bool]) -> float:
    """Read one number and see that it fits."""
    try:
        if isinstance(given, str | bytes | bool | np.bool_) or not hasattr(given, "__float__"):
            raise TypeError
        found = float(given)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}, received {given!r}") from None
    except (ValueError, OverflowError):  # a text in an array; an integer beyond all floats
        found = math.nan
    if not fits(found):
        raise ValueError(f"{name}: expected {expected}, received {given!r}")
    return found


def native(array: Array, dtype: np.dtype[Any]) -> Array:
    """Give the array this dtype; a copy only of other dtypes, swapped bytes and odd addresses."""
    return np.require(array, dtype, "A")


def real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Name the dtype of weights and lse of a call: float64 for float64, float32 for all others."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def bits(array: Array) -> Array:
    """Give the array as the kernel takes it: bfloat16 as its 16 bits, others as they are."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def kind(given: Any, array: Array) -> str:
    """Name the dtype of an array, or of what a list holds."""
    name = str(array.dtype)
    return f"{type(given).__name__} of {name}" if isinstance(given, list | tuple) else name


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Say whether an array of this shape broadcasts to the target."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(n in (1, m) for n, m in pairs)


def expect(name: str, array: Array, axes: str, target: tuple[int, ...]) -> None:
    """Refuse an array that does not broadcast to the target."""
    if not broadcasts(array.shape, target):
        raise ShapeError(f"{name}: expected shape {axes} = {target}, received {array.shape}.")
