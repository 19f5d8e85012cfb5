"""How many threads compute. Results are the same, bit for bit, for any number of them."""

import os
from types import TracebackType

from regard import _kernel
from regard.core.arguments import integer


class threads:  # noqa: N801  (called like a function)
    """Set how many threads compute, for the whole process; in a `with` statement, for its length.

    Without a number nothing changes; printing the result says how many there are. To begin with
    it is `REGARD_THREADS`, else `OMP_NUM_THREADS`, else the cores that this process may use.

    >>> import regard
    >>> with regard.threads(1):
    ...     print(regard.threads())
    1 thread

    Raises a `ValueError` for a number below 1.
    """

    def __init__(self, count: int | None = None) -> None:
        self._before = _kernel.threads()
        if count is not None:
            _kernel.set_threads(_positive("threads", integer("threads", count)))
        self.count = _kernel.threads()

    def __enter__(self) -> "threads":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _kernel.set_threads(self._before)

    def __repr__(self) -> str:
        return f"{self.count} thread{'s' * (self.count > 1)}"


def _positive(name: str, count: int) -> int:
    if not 1 <= count <= 1024:
        raise ValueError(f"{name}: expected a number of threads from 1 to 1024, received {count}")
    return count


def _from_environment() -> None:
    """Read the environment's wishes; ours must make sense, OpenMP's are taken where they do."""
    ours, theirs = os.environ.get("REGARD_THREADS"), os.environ.get("OMP_NUM_THREADS", "")
    if ours:
        if not ours.strip().isdecimal():
            raise ValueError(f"REGARD_THREADS: expected a number of threads, received {ours!r}")
        count = _positive("REGARD_THREADS", int(ours))
    elif (first := theirs.split(",")[0].strip()).isdecimal() and int(first):
        count = min(int(first), 1024)  # OpenMP allows "4,2": one number for each level
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    _kernel.set_threads(count)

    if wanted := os.environ.get("REGARD_KERNEL"):
        if wanted not in _kernel.kernels():
            raise ValueError(
                f"REGARD_KERNEL: expected one of {', '.join(_kernel.kernels())}, which this "
                f"processor can run, received {wanted!r}"
            )
        _kernel.use_kernel(wanted)


_from_environment()
