"""The command: scripts/bench."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

import regard
from bench import plot, publish, report, setting
from bench.apart import Apart
from bench.groups import GROUPS
from bench.peers import PEERS, SLOW

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DESCRIPTION = """\
Measure regard beside PyTorch, onnxruntime, JAX, Keras and NumPy, by turns: a call of each, medians
and quartiles of the ratios within a round, errors against float64, memory, and how much of what
the machine can do is reached. Each peer runs in a process of its own, with as many threads.

  scripts/bench --quick               all groups in little, under two minutes
  scripts/bench --name NAME           all of it (about 15 minutes, a third of it growth), into
                                      bench/results/NAME.json, NAME.md, NAME.svg, NAME-growth.svg
  scripts/bench --name NAME --group growth
                                      these groups anew, the others as they are in NAME.json
  scripts/bench --plot                draw the pictures of all of bench/results again
  scripts/bench --publish NAME        fill the places for results in README and docs/kernel.md
"""
EPILOG = """\
Results go to standard output as Markdown too; without --name, files go to bench/out, which git
ignores. Leave the machine alone meanwhile: the report says how busy it was.
"""


def main() -> None:
    wishes = wanted()
    console = Console(stderr=True)
    if wishes.plot:
        for path in sorted(RESULTS.glob("*.json")):
            for picture in plot.draw(json.loads(path.read_text()), path.with_suffix("")):
                console.print(f"drawn: {picture}", highlight=False)
    elif wishes.publish:
        for page in publish.publish(json.loads((RESULTS / f"{wishes.publish}.json").read_text())):
            console.print(f"filled: {page}", highlight=False)
    else:
        measured(wishes, console)


def wanted() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "scripts/bench", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--group", nargs="+", choices=GROUPS, metavar="GROUP",
                        default=list(GROUPS),
                        help=f"of {', '.join(GROUPS)}; all unless said")  # fmt: skip
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="PEER", default=list(PEERS),
                        help=f"of {'; '.join(PEERS)}; all unless said")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="the first problem of each group, fewer rounds and peers")  # fmt: skip
    parser.add_argument("--threads", type=int, default=regard.threads().count,
                        help="for regard and every peer; %(default)s unless said")  # fmt: skip
    parser.add_argument("--name", help="keep the results in bench/results under this name")
    parser.add_argument("--plot", action="store_true", help="measure nothing, draw what there is")
    parser.add_argument("--publish", metavar="NAME", help="measure nothing, fill the pages")
    return parser.parse_args()


def measured(wishes: argparse.Namespace, console: Console) -> None:
    """Run the groups; what is done is written after each, so that an interrupt loses little."""
    path = RESULTS / wishes.name if wishes.name else HERE / "out/latest"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".json")
    before = json.loads(file.read_text()) if wishes.name and file.exists() else {}
    result: dict[str, Any] = {
        "name": path.name,
        "date": setting.today(),
        "quick": wishes.quick,
        "setting": setting.setting(wishes.threads),
        "measured": before.get("measured", {}),
        "groups": before.get("groups", {}),
    }
    able = set(wishes.peers) - (SLOW if wishes.quick else set())
    named = {name for group in wishes.group for name in GROUPS[group].peers} & able
    with console.status("loading the peers …") as status:
        limits = Apart("limits", wishes.threads)
        peers = {name: Apart(name, wishes.threads) for name in PEERS if name in named}
        try:
            for one in (limits, *peers.values()):
                one.settle()
            for name in wishes.group:
                rows: list[Any] = []
                status.update(f"{name} …")
                some = {one: peers[one] for one in GROUPS[name].peers if one in peers}
                for row in GROUPS[name].rows(GROUPS[name], some, limits, wishes.quick):
                    rows.append(row)
                    console.print(f"[green]✓[/] {name}: {row['problem']}", highlight=False)
                result["groups"][name] = rows
                result["measured"][name] = setting.now()
                result["setting"]["load after"] = setting.load()
                file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        finally:
            for one in (limits, *peers.values()):
                one.end()
    text = report.markdown(result)
    path.with_name(path.name + ".md").write_text(text)
    print(text)
    pictures = plot.draw(result, path) if wishes.name else []
    for written in (file, path.with_name(path.name + ".md"), *pictures):
        console.print(f"written: {written}", highlight=False)


if __name__ == "__main__":
    main()
