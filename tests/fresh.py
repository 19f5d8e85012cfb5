"""A new interpreter, for what must not meet this one's state, or may end it."""

import os
import subprocess
import sys
import textwrap


def fresh(code: str, *arguments: object, seconds: float | None = 60, **environment: str) -> str:
    """What a new interpreter prints that runs the code; it must end well, and in time."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout
