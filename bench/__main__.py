"""The command: scripts/bench."""

import argparse
import datetime
import json
from pathlib import Path

from rich.console import Console

import regard
from bench import peers, report
from bench.groups import GROUPS

HERE = Path(__file__).parent
DESCRIPTION = """\
Measure regard beside PyTorch, onnxruntime and NumPy, in one process and by turns: a call of each,
gaps of some milliseconds, medians and quartiles of the ratios within a round.
"""
EPILOG = """\
Results are written as Markdown (also to standard output) and JSON: to bench/out/latest, which git
ignores; results to keep go in bench/results. Leave the machine alone meanwhile: the report says
how busy it was.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "scripts/bench", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="under two minutes, fewer rounds")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, metavar="GROUP",
                        default=list(GROUPS),
                        help=f"of {', '.join(GROUPS)}; all unless said")  # fmt: skip
    parser.add_argument("--peers", nargs="+", choices=list(peers.PEERS)[1:], metavar="PEER",
                        default=list(peers.PEERS)[1:],
                        help=f"of {', '.join(list(peers.PEERS)[1:])}; all unless said")  # fmt: skip
    parser.add_argument("--threads", type=int, default=regard.threads().count,
                        help="for regard and every peer; %(default)s unless said")  # fmt: skip
    parser.add_argument("--output", type=Path, default=HERE / "out/latest", metavar="PATH",
                        help="where to write results, without .md and .json")  # fmt: skip
    wishes = parser.parse_args()

    peers.set_threads(wishes.threads)
    console, names = Console(stderr=True), ["regard", *wishes.peers]
    result = {
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "quick": wishes.quick,
        "setting": report.setting(wishes.threads),
        "peers": names,
        "rows": [],
    }
    for group in wishes.groups:
        with console.status(f"{group} …") as status:
            for row in GROUPS[group](names, wishes.threads, wishes.quick):
                result["rows"].append(row)
                console.print(f"[green]✓[/] {group}: {row['problem']}", highlight=False)
                status.update(f"{group} … {row['problem']} done")
    result["setting"]["load after"] = report.load()

    path = wishes.output
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result)
    path.with_suffix(".md").write_text(text)
    print(text)
    console.print(f"written to {path.with_suffix('.md')} and .json", highlight=False)


if __name__ == "__main__":
    main()
