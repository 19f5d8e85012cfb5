"""Results as a page of Markdown tables."""

import math
from typing import Any

from bench.groups import GROUPS, MOST_MEBIBYTES, MOST_SECONDS

Rows = list[dict[str, Any]]
HOW = """\
Each peer runs in a process of its own with as many threads, on the same inputs in its own layout,
compiled where it compiles; they take turns. **×** is a peer's time over regard's in the same round,
median [quartiles]: above 1 regard is faster. A peer that takes long has one round. All float32 runs
at full precision ('highest' in PyTorch and JAX); what is reached is in the tables of errors. Share:
of a float32 matrix product of NumPy's in the same run; in decoding, of reading memory with all
threads.
"""


def markdown(result: dict[str, Any]) -> str:
    """The whole result, to read."""
    parts = [f"# {result['name']}\n\n{where(result)}\n\n{HOW}"]
    for name, rows in result["groups"].items():
        parts.append(f"## {headline(name)}\n")
        parts += TABLES.get(name, turns)(rows, GROUPS[name].bound)
        parts += [reasons(rows), f"Done {result['measured'][name]}.\n"]
    return "\n".join(part for part in parts if part)


def headline(name: str) -> str:
    """A group's title as a line of its own; a type's name stays as it is written."""
    title = GROUPS[name].title
    return title if title == "bfloat16" else title.capitalize()


def where(result: dict[str, Any]) -> str:
    """The machine, the versions and the day, in a sentence or two."""
    setting = result["setting"]
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    return (
        f"{setting['processor']}, {setting['cores']} cores, {setting['threads']} threads each; "
        f"kernel {setting['kernel']}; regard {setting['regard']}, {versions}, Python "
        f"{setting['python']}. Load {setting['load before']} before, {setting['load after']} "
        f"after. {result['date']}{', quick' * result['quick']}."
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def who(rows: Rows, field: str) -> list[str]:
    """The peers that have a number somewhere."""
    names = dict.fromkeys(name for row in rows for name in row["peers"])
    return [name for name in names if any(field in row["peers"].get(name, {}) for row in rows)]


def turns(rows: Rows, bound: str) -> list[str]:
    """Times and ratios; then errors and memory."""
    names = who(rows, "seconds")
    others = [name for name in names if name != "regard"]
    unit = "GFLOP/s" if bound == "gflops" else "GB/s"
    speed, exact = [], []
    for row in rows:
        found = [row["peers"].get(name, {}) for name in names]
        ours = row["peers"].get("regard", {})
        share = f"{ours['share']:.0%} of {row['limit'][bound]:.0f} {unit}" if ours else ""
        ratios = [ratio(row["peers"].get(name, {})) for name in others]
        speed.append([row["problem"], duration(ours), share, *ratios])
        exact.append([row["problem"], *(f"{rms(one)} · {size(one)}" for one in found)])
    return [
        table(["", "regard", "share", *(f"× {name}" for name in others)], speed),
        "Error (rms, over the output's rms) and MiB beyond the inputs:\n",
        table(["", *names], exact),
    ]


def bursts(rows: Rows, bound: str) -> list[str]:
    names, kinds = who(rows, "microseconds"), ("median", "mean", "p99")
    body = []
    for row in rows:
        found = [row["peers"][name].get("microseconds") for name in names]
        cells = [" / ".join(f"{one[kind]:.0f}" for kind in kinds) if one else "" for one in found]
        body.append([row["problem"], *cells])
    return ["µs a call: median / mean / 99th percentile.\n", table(["", *names], body)]


def lengths(rows: Rows, bound: str) -> list[str]:
    """Time and memory by length, and the exponent of the last doubling."""
    names = who(rows, "seconds")
    body = []
    for row in rows:
        found = [row["peers"].get(name, {}) for name in names]
        cells = [
            f"{duration(one, False)} · {size(one)}" if "seconds" in one else "" for one in found
        ]
        body.append([f"{row['length']:,}", *cells])
    body.append(["exponents of T, last doubling", *(exponents(rows, name) for name in names)])
    head = ["T = S; one head, D 64", *names]
    limits = f"{MOST_MEBIBYTES / 1024:.0f} GiB or {MOST_SECONDS:.0f} s"
    said = (
        f"Time and MiB beyond the inputs. A peer stops before it would need more than {limits}.\n"
    )
    return [said, table(head, body)]


def exponents(rows: Rows, name: str) -> str:
    """Of time and memory: log2 of the last over the one before."""
    found = [row["peers"][name] for row in rows if "seconds" in row["peers"].get(name, {})]
    if len(found) < 2:
        return ""
    time = math.log2(found[-1]["seconds"][1] / found[-2]["seconds"][1])
    memory = [one["mebibytes"] for one in found[-2:]]
    grown = f"{math.log2(memory[1] / memory[0]):.1f}" if memory[0] and memory[1] else "–"
    return f"{time:.1f} · {grown}"


TABLES = {"small": bursts, "growth": lengths}


def duration(one: dict[str, Any], spread: bool = True) -> str:
    """Milliseconds, with their quartiles."""
    if "seconds" not in one:
        return ""
    low, middle, high = (f"{x * 1e3:.3g}" if x < 1 else f"{x * 1e3:.0f}" for x in one["seconds"])
    return f"{middle} ms" + f" [{low}–{high}]" * spread


def ratio(one: dict[str, Any]) -> str:
    if "ratio" not in one:
        return ""
    low, middle, high = one["ratio"]
    return f"**{middle:.2f}** [{low:.2f}–{high:.2f}]"


def rms(one: dict[str, Any]) -> str:
    return f"{one['error']['rms']:.1e}" if "error" in one else "–"


def size(one: dict[str, Any]) -> str:
    grown = one.get("mebibytes")
    return "–" if grown is None else f"{grown:.0f}" if grown >= 9.5 else f"{grown:.1f}"


def reasons(rows: Rows) -> str:
    """Who did not take part, and why."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for name, one in row["peers"].items():
            if "cannot" in one:
                said.setdefault(f"{name}: {one['cannot']}", []).append(row["problem"])
    whole = [
        why + f" ({len(at)} of {len(rows)})" * (len(at) < len(rows)) for why, at in said.items()
    ]
    return "Not measured: " + "; ".join(whole) + ".\n" if said else ""
