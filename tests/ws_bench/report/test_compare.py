"""Better, worse or noise: how often it is wrong about the same build, and whether it finds what was planted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend_kit.wire import dumps
from tests.ws_bench.dice import dice
from tests.ws_bench.recordings import closed_run
from ws_bench.__main__ import main
from ws_bench.errors import UsageError
from ws_bench.record.recording import Recording, window_of
from ws_bench.record.summary import build_report
from ws_bench.report.compare import RATE, against_baseline, compare_runs, overall, save_baseline
from ws_bench.report.report import result_json


def stored(run: Recording, path: Path) -> str:
    path.write_bytes(dumps(result_json(build_report(run))))
    return str(path)


def test_random_halves_of_ten_runs_of_one_build_are_noise() -> None:
    runs = [closed_run(seed) for seed in range(10)]
    random = dice(1)
    verdicts = []
    for _ in range(20):
        random.shuffle(runs)
        verdicts.append(overall(compare_runs(runs[:5], runs[5:])))
    assert verdicts.count("noise") >= 19


def test_pairs_of_runs_of_one_build_are_noise() -> None:
    pairs = [(closed_run(seed), closed_run(seed + 100)) for seed in range(40)]
    verdicts = [overall(compare_runs([old], [new])) for old, new in pairs]
    assert verdicts.count("noise") >= 38


def test_a_planted_tenth_is_found_by_groups_and_a_fifth_by_pairs() -> None:
    old = [closed_run(seed) for seed in range(5)]
    slower = [closed_run(seed + 50, factor=1.10) for seed in range(5)]
    found = {one.name: one for one in compare_runs(old, slower)}
    assert (found["turn p50"].verdict, found[RATE].verdict) == ("worse", "worse")
    assert found["turn p50"].ratio.ratio == pytest.approx(1.10, abs=0.03)
    assert found["turn p50"].ratio.low < 1.10 < found["turn p50"].ratio.high
    assert overall(compare_runs(slower, old)) == "better"
    single = compare_runs([closed_run(1, turns=150)], [closed_run(2, turns=150, factor=1.20)])
    assert overall(single) == "worse"


def test_the_spread_of_noise_runs_widens_what_counts_as_noise() -> None:
    old, new = closed_run(1, drift=0, turns=150), closed_run(2, drift=0, turns=150, factor=1.15)
    assert overall(compare_runs([old], [new])) == "worse"
    noise = [closed_run(seed, drift=0.10, turns=150) for seed in range(6)]
    assert overall(compare_runs([old], [new], noise=noise)) == "noise"


def test_p99_is_only_compared_where_there_are_turns_enough() -> None:
    few = compare_runs([closed_run(1, turns=8)], [closed_run(2, turns=8)])
    many = compare_runs([closed_run(1)], [closed_run(2)])
    assert ["turn p99" in {one.name for one in found} for found in (few, many)] == [False, True]


def short_run(seed: int, *, factor: float = 1.0) -> Recording:
    """A run whose first client has done before its last one begins: as the first one of a reader of the README."""
    run = closed_run(seed, clients=20, turns=3, factor=factor)
    run.turns = [replace(turn, asked=turn.asked + turn.client, ended=turn.ended + turn.client) for turn in run.turns]
    return run


def test_runs_without_a_steady_window_are_compared_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert window_of(short_run(1)) is None
    same = compare_runs([short_run(1)], [short_run(2)])
    assert "all are compared whole" in capsys.readouterr().err
    assert {one.name for one in same} == {"turn p50", "turn p95", "first token p50", "first token p95", RATE}
    assert overall(same) == "noise"
    slower = {one.name: one for one in compare_runs([short_run(1)], [short_run(2, factor=3.0)])}
    assert slower["turn p50"].verdict == "worse"
    capsys.readouterr()
    assert compare_runs([closed_run(1)], [closed_run(2)])
    assert "compared whole" not in capsys.readouterr().err


def test_a_baseline_of_whole_runs_is_held_against_whole_runs(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    save_baseline(str(path), [short_run(seed) for seed in range(6)], 0.95)
    baseline: dict[str, Any] = json.loads(path.read_text())
    assert baseline["steady"] is False
    assert overall(against_baseline(baseline, [short_run(9)])) == "noise"
    with pytest.raises(UsageError, match="without a steady window"):
        against_baseline({**baseline, "steady": True}, [short_run(9)])


@pytest.mark.parametrize("argv", [("-agent", "Rico"), ("-native",), ("-message", "Why?"), ("-think", "1s")])
def test_unlike_configurations_are_refused_unless_forced(argv: tuple[str, ...]) -> None:
    old, new = closed_run(1), closed_run(2, argv=argv)
    with pytest.raises(UsageError, match="unlike configurations"):
        compare_runs([old], [new])
    assert compare_runs([old], [new], force=True)


def test_another_seed_or_address_is_no_other_configuration() -> None:
    assert compare_runs([closed_run(1)], [closed_run(2, argv=("-seed", "9", "-url", "ws://h/chatbot/query/ws"))])


def test_two_runs_against_one_say_nothing() -> None:
    with pytest.raises(UsageError, match="groups of at least 3"):
        compare_runs([closed_run(1), closed_run(2)], [closed_run(3)])


def test_a_baseline_holds_its_band(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    save_baseline(str(path), [closed_run(seed) for seed in range(6)], 0.95)
    baseline: dict[str, Any] = json.loads(path.read_text())
    band = baseline["figures"]["turn p50"]
    assert band["low"] < band["centre"] < band["high"]
    assert len(band["values"]) == 6
    assert [overall(against_baseline(baseline, [closed_run(seed)])) for seed in range(20, 30)].count("noise") >= 9
    assert overall(against_baseline(baseline, [closed_run(31, factor=1.25)])) == "worse"
    assert overall(against_baseline(baseline, [closed_run(32, factor=0.75)])) == "better"
    with pytest.raises(UsageError, match="unlike"):
        against_baseline(baseline, [closed_run(33, argv=("-native",))])


def test_the_command_says_worse_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [stored(closed_run(seed), tmp_path / f"old{seed}.json") for seed in range(3)]
    new = [stored(closed_run(seed + 9, factor=1.3), tmp_path / f"new{seed}.json") for seed in range(3)]
    out = tmp_path / "verdict.json"
    assert main(["compare", "-old", ",".join(old), "-new", ",".join(new), "-json", str(out)]) == 1
    assert "Verdict: worse" in capsys.readouterr().out
    assert json.loads(out.read_text())["verdict"] == "worse"
    assert main(["compare", old[0], old[1]]) == 0
    assert main(["compare", "-save-baseline", str(tmp_path / "base.json"), *old]) == 0
    assert main(["compare", "-baseline", str(tmp_path / "base.json"), new[0]]) == 1
    capsys.readouterr()


def test_what_cannot_be_compared_is_exit_code_2_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = stored(closed_run(1), tmp_path / "good.json")
    other = tmp_path / "other.json"
    other.write_text("{}")
    interrupted = closed_run(2)
    interrupted.interrupted = True
    for argv, said in (
        ([good], "compare needs"),
        ([good, str(other)], "is not a result file"),
        ([good, str(tmp_path / "none.json")], "cannot read"),
        ([good, stored(interrupted, tmp_path / "i.json")], "INTERRUPTED"),
        ([good, stored(closed_run(3, argv=("-native",)), tmp_path / "n.json")], "unlike configurations: native"),
        (["-baseline", str(other), good], "is not a baseline"),
    ):
        assert main(["compare", *argv]) == 2
        assert said in capsys.readouterr().err
