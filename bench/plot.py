"""Draws results: how many times as long each peer takes, and how time and memory grow.

A problem is a line of dots on a logarithmic axis; right of 1 regard is faster. Blue is regard, as
in all its pictures; the others keep one colour and one mark each everywhere.
"""

import math
from pathlib import Path
from typing import Any

from bench.report import TABLES, headline, who

INK, QUIET, LINES = "#16181d", "#666b74", "#e3e4e6"
# Okabe and Ito's colours (2008), which stay apart in the common forms of colour blindness.
LOOKS = {
    "regard": ("#2d6ec1", "o"),
    "regard + top 8": ("#56a0e0", "P"),
    "regard + all looks": ("#93c1ec", "X"),
    "torch": ("#d55e00", "o"),
    "torch enable_gqa": ("#d55e00", "s"),
    "torch folded rows": ("#d55e00", "D"),
    "torch by pieces": ("#d55e00", "^"),
    "torch flex": ("#d55e00", "v"),
    "onnxruntime": ("#009e73", "o"),
    "jax.nn": ("#b5579b", "o"),
    "keras, jax": ("#b5579b", "D"),
    "keras, tensorflow": ("#c99700", "o"),
    "numpy": ("#666b74", "o"),
}


def draw(result: dict[str, Any], path: Path) -> list[Path]:
    """Write PATH.svg and, where growth was measured, PATH-growth.svg."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "regard", "font.family": "sans-serif",
        "font.size": 10, "text.color": INK, "axes.edgecolor": LINES, "axes.labelcolor": QUIET,
        "xtick.color": QUIET, "ytick.color": INK, "axes.spines.top": False,
        "axes.spines.right": False, "grid.color": LINES,
    })  # fmt: skip
    written = []
    groups = {n: rows for n, rows in result["groups"].items() if n not in TABLES and rows}
    if groups:
        written.append(_save(_ratios(result, groups), path, ""))
    if result["groups"].get("growth"):
        written.append(_save(_growth(result["groups"]["growth"]), path, "-growth"))
    return written


def _save(figure: Any, path: Path, ending: str) -> Path:
    file = path.with_name(f"{path.name}{ending}.svg")
    figure.savefig(file, metadata={"Date": None})
    return file


def _ratios(result: dict[str, Any], groups: dict[str, Any]) -> Any:
    """Groups below one another, a line for each problem."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    count = sum(len(rows) + 1.3 for rows in groups.values())
    height = 0.235 * count + 1.45
    figure = Figure(figsize=(9, height))
    axes = figure.add_axes((0.335, 0.75 / height, 0.645, 1 - 1.45 / height))
    places, names, place, shown = [], [], 0.0, {}
    for name, rows in groups.items():
        place += 1.3
        axes.text(-0.505, place - 0.72, headline(name), weight="bold", va="center",
                  transform=axes.get_yaxis_transform())  # fmt: skip
        for row in rows:
            axes.axhline(place, color=LINES, lw=0.8, zorder=0)
            for peer, one in row["peers"].items():
                if "ratio" not in one or peer == "regard":
                    continue
                low, middle, high = one["ratio"]
                colour, mark = LOOKS[peer]
                axes.plot([low, high], [place] * 2, color=colour, lw=2, alpha=0.35, zorder=2)
                axes.plot(middle, place, mark, color=colour, ms=7, mec="white", mew=0.6, zorder=3)
                shown[peer] = colour, mark
            places.append(place)
            names.append(row["problem"])
            place += 1
    axes.set(xscale="log", ylim=(place - 0.3, 0.1), yticks=places)
    axes.set_yticklabels(names, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.axvline(1, color=LOOKS["regard"][0], lw=1.6, zorder=1)
    low, high = axes.get_xlim()
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", zorder=0)
    axes.set_xlabel(
        "a peer's time over regard's, median and quartiles: right of 1× regard is faster"
    )
    axes.text(1, 1.0, "regard", color=LOOKS["regard"][0], weight="bold", ha="center", va="bottom",
              transform=axes.get_xaxis_transform())  # fmt: skip
    dots = [
        Line2D([], [], color=shown[p][0], marker=shown[p][1], ls="", ms=7, label=p)
        for p in LOOKS
        if p in shown
    ]
    figure.legend(handles=dots, loc="upper left", ncols=6, frameon=False, fontsize=9,
                  bbox_to_anchor=(0.005, 1), handletextpad=0.1, columnspacing=1.1)  # fmt: skip
    return figure


def _growth(rows: list[dict[str, Any]]) -> Any:
    """Time and memory beside each other, each line named at its end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.3), layout="constrained")
    names, lengths = who(rows, "seconds"), [row["length"] for row in rows]
    panels = {"Time, seconds": "seconds", "Memory beyond the inputs, MiB": "mebibytes"}
    for axes, (title, field) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="T = S", xlim=(lengths[0], lengths[-1]))
        axes.set_title(title, loc="left", fontsize=11, weight="bold", pad=12)
        axes.set_xticks(lengths[::2], [f"{n:,}" for n in lengths[::2]])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda x, _: f"{x:,g}")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        ends = {}
        for name in names:
            found = [(row["length"], row["peers"][name].get(field)) for row in rows]
            if field == "seconds":
                found = [(n, one and one[1]) for n, one in found]
            line = [(n, max(one, 0.01 if field == "mebibytes" else 0)) for n, one in found if one]
            if line:
                colour, mark = LOOKS[name]
                axes.plot(*zip(*line, strict=True), color=colour, marker=mark, ms=5, mec="white",
                          mew=0.6, lw=2.6 if name == "regard" else 1.4, clip_on=False)  # fmt: skip
                ends[name] = line[-1]
        _name_ends(axes, ends, lengths[-1])
    return figure


def _name_ends(axes: Any, ends: dict[str, tuple[float, float]], right: float) -> None:
    """The lines' names in a column on the right, apart from each other, each tied to its end."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    room, order = (high - low) / 17, sorted(ends, key=lambda name: -ends[name][1])
    places = [math.log(ends[name][1]) for name in order]
    for n in range(1, len(places)):
        places[n] = min(places[n], places[n - 1] - room)
    for n in reversed(range(len(places))):  # and none below the axes
        places[n] = max(places[n], low if n == len(places) - 1 else places[n + 1] + room)
    for name, place in zip(order, places, strict=True):
        colour, weight = LOOKS[name][0], "bold" if name == "regard" else "normal"
        axes.annotate(
            name, ends[name], (right * 1.8, math.exp(place)), color=colour, fontsize=9,
            weight=weight, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.35, "shrinkB": 4,
                        "relpos": (0, 0.5)},
        )  # fmt: skip
