"""The bench: its peers compute the same, results can be drawn, pages show what was measured."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench import measure, plot, publish, report  # noqa: E402
from bench.apart import Apart  # noqa: E402
from bench.groups import GROUPS  # noqa: E402
from bench.peers import PEERS, SLOW, Cannot  # noqa: E402
from bench.problems import Problem, error  # noqa: E402

PROBLEMS = [
    Problem(2, 3, 67, 67, 16),
    Problem(2, 3, 67, 67, 16, causal=True),
    Problem(1, 4, 1, 83, 16, key_heads=2),
    Problem(1, 4, 83, 83, 16, key_heads=2, causal=True),
    *(Problem(2, 3, 307, 307, 16, rule=rule) for rule in ("mask", "bias", "padding")),
    *(Problem(2, 3, 307, 307, 16, rule=rule) for rule in ("segments", "window")),
    Problem(2, 3, 67, 67, 16, causal=True, backward=True),
    Problem(1, 3, 67, 67, 16, dtype="bfloat16"),
]
NAMES = [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in PEERS]


@pytest.mark.parametrize("name", NAMES)
def test_every_peer_computes_the_same(name):
    peer, answered, refused = Apart(name, 1), 0, []
    try:
        for problem in PROBLEMS:
            try:
                _, grown, sample = peer.ask("prepare", problem)
            except Cannot as reason:
                refused.append(str(reason))
                continue
            answered += 1
            most = 5e-2 if problem.dtype == "bfloat16" else 1e-6
            assert error(sample, problem.truth())["rms"] < most, problem
            assert grown is None or grown < 32
            assert 0 < peer.ask("time") < 10
    finally:
        peer.end()
    assert answered
    assert "Error" not in " ".join(refused)


def test_a_peer_that_is_missing_says_so_and_one_that_dies_harms_nobody():
    peer = Apart("limits", 1)  # knows no problems
    with pytest.raises(Cannot, match="burst"):
        peer.ask("burst", 1)
    peer.end()
    with pytest.raises(Cannot, match="its process ended"):
        peer.ask("time")


def test_truth_and_work_follow_the_rule():
    packed, windowed = (Problem(1, 2, 307, 307, 8, rule=rule) for rule in ("segments", "window"))
    assert packed.pairs == 2 * sum(int((packed.segments() == s).sum()) ** 2 for s in range(5))
    assert windowed.pairs == 2 * sum(min(row + 1, 256) for row in range(307))
    assert Problem(2, 3, 5, 7, 8).operations == 2 * 3 * 5 * 7 * 8 * 4


class Sleeper:
    def __init__(self, seconds):
        self.seconds, self.calls = seconds, 0

    def ask(self, order):
        assert order == "time"
        self.calls += 1
        time.sleep(self.seconds)
        return self.seconds


def test_turns_and_quartiles():
    peers = {"quick": Sleeper(0), "slow": Sleeper(0.01)}
    times = measure.in_turns(peers, {"quick": 0, "slow": 0.01}, budget=0.05, least=3)
    assert len(times["quick"]) == len(times["slow"]) > 3
    assert peers["slow"].calls == 1  # then it sits out
    assert measure.quartiles([1, 2, 3, np.nan]) == [1.5, 2, 2.5]


def test_a_small_run(tmp_path):
    """From start to end: progress on standard error, tables on standard output, pictures."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--threads", "1", "--group", "grouped", "growth",
         "small", "--peers", "numpy", "regard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=250,
    )  # fmt: skip
    assert "✓ growth" in done.stderr
    for said in ("## Grouped heads", "× numpy", "## Growth", "exponents of T", "µs a call"):
        assert said in done.stdout
    result = json.loads((ROOT / "bench/out/latest.json").read_text())
    grown = {name: [row["peers"][name]["mebibytes"] for row in result["groups"]["growth"]]
             for name in ("numpy", "regard")}  # fmt: skip
    assert grown["numpy"][-1] > 2048 * 2048 * 4 / 2**20 * 0.9  # the table of scores
    assert grown["regard"][-1] < 4
    for written in plot.draw(result, tmp_path / "one"):
        assert "numpy" in written.read_text()
    assert "(bench/results/latest.svg)" in publish.readme(result)
    assert publish.kernel(result).count("grouped heads") == 1


def test_all_groups_can_be_drawn():
    assert set(report.TABLES) < set(GROUPS)
    assert {name for group in GROUPS.values() for name in group.peers} == set(PEERS)
    assert set(plot.LOOKS) | {"regard from torch"} == set(PEERS)


def test_pages_show_kept_results_and_nothing_else():
    for page, write in (("README.md", publish.readme), ("docs/kernel.md", publish.kernel)):
        text = (ROOT / page).read_text()
        (place,) = re.findall(r"<!-- bench -->\n(.*?)<!-- /bench -->", text, re.DOTALL)
        named = set(re.findall(r"bench/results/([\w.-]+?)(?:-growth)?\.(?:svg|md)", place))
        if not named:
            assert "|" not in place, f"{page} shows numbers of no results"
            continue
        (name,) = named
        result = json.loads((ROOT / f"bench/results/{name}.json").read_text())
        assert publish.filled(text, write(result)) == text, f"scripts/bench --publish {name}"
