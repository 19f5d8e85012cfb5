"""The short tables and the pictures that README and docs/kernel.md show of kept results.

Both pages have a place for them, between `<!-- bench -->` and `<!-- /bench -->`; nothing in it is
written by hand.
"""

import re
from pathlib import Path
from typing import Any

from bench.groups import GROUPS
from bench.report import TABLES, duration, exponents, ratio, rms, size, table, where, who

ROOT = Path(__file__).parent.parent
FAMILIES = {
    "PyTorch": "torch",
    "onnxruntime": "onnxruntime",
    "JAX": "jax.nn",
    "Keras": "keras",
    "NumPy": "numpy",
}


def publish(result: dict[str, Any], root: Path = ROOT) -> list[Path]:
    """Fill both places."""
    pages = {root / "README.md": readme, root / "docs/kernel.md": kernel}
    for path, write in pages.items():
        path.write_text(filled(path.read_text(), write(result)))
    return list(pages)


def filled(page: str, text: str) -> str:
    """A page with this text in its place for results."""
    mark = r"(<!-- bench -->\n).*?(<!-- /bench -->)"
    return re.sub(mark, lambda found: found[1] + "\n" + text + "\n" + found[2], page, flags=re.S)


def readme(result: dict[str, Any]) -> str:
    """The largest problem of each group, each library in the fastest of its ways."""
    body = []
    for name, rows in result["groups"].items():
        if name in TABLES or "regard" not in rows[-1]["peers"]:
            continue
        found = rows[-1]["peers"]
        ours = "regard + all looks" if "regard + all looks" in found else "regard"
        best = [fastest(found, begin, ours) for begin in FAMILIES.values()]
        errors = f"{rms(found[ours])} / {rms(found.get('torch', {}))}"
        body.append([titled(name, rows[-1]), duration(found[ours], False), *best, errors])
    head = ["", "regard", *(f"× {family}" for family in FAMILIES), "error, ours / PyTorch's"]
    return "\n".join(
        [
            pictures(result, "bench/results", ["", "-growth"]),
            table(head, body),
            "× is a library's time over regard's, in the fastest of its ways: above 1 regard is\n"
            "faster. Error: rms against float64, over the output's rms. " + where(result) + "\n",
            f"[All results](bench/results/{result['name']}.md), how they were measured, and "
            "`scripts/bench --quick` to measure your own machine.\n",
        ]
    )


def kernel(result: dict[str, Any]) -> str:
    """How much of the machine is reached, and how time and memory grow."""
    body = []
    for name in ("forward", "causal", "masked", "grouped", "decode", "backward", "bfloat16"):
        bound = GROUPS[name].bound
        for row in result["groups"].get(name, []):
            found = row["peers"]
            limit = f"{row['limit'][bound]:.0f} {'GFLOP/s' if bound == 'gflops' else 'GB/s'}"
            ours = found["regard"]
            error = f"{rms(ours)} / {rms(found.get('torch', {}))}"
            ratios = [ratio(found.get(one, {})) for one in ("torch", "onnxruntime")]
            body.append(
                [titled(name, row), f"{ours['share']:.0%} of {limit}", *ratios, error, size(ours)]
            )
    head = ["", "share", "× torch", "× onnxruntime", "error, ours / torch's", "MiB"]
    parts = [where(result) + "\n", table(head, body)]
    if growth := result["groups"].get("growth"):
        said = [f"{name} {exponents(growth, name)}" for name in who(growth, "seconds")]
        parts += [
            "Exponents of T at the last doubling, of time · of memory beyond the inputs: "
            + ", ".join(said)
            + ".\n",
            pictures(result, "../bench/results", ["-growth"]),
        ]
    parts.append(f"[All results](../bench/results/{result['name']}.md).\n")
    return "\n".join(parts)


def titled(name: str, row: dict[str, Any]) -> str:
    """A problem, with its group's title where it does not say as much itself."""
    title, problem = GROUPS[name].title, row["problem"]
    return problem if title in problem else f"{title}: {problem}"


def fastest(found: dict[str, Any], begin: str, ours: str) -> str:
    """The smallest median ratio among a library's ways, to one of ours."""
    ways = [one["ratio"][1] for n, one in found.items() if n.startswith(begin) and "ratio" in one]
    return f"{min(ways) / found[ours]['ratio'][1]:.2f}" if ways else ""


def pictures(result: dict[str, Any], folder: str, endings: list[str]) -> str:
    said = {
        "": "Time of each peer over regard's, by problem",
        "-growth": "Time and memory by length, each peer a line",
    }
    lines = [f"![{said[end]}]({folder}/{result['name']}{end}.svg)\n" for end in endings]
    return "\n".join(lines if "growth" in result["groups"] else lines[:1])
