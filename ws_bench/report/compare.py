"""`ws_bench compare`: whether one build is slower than another, or whether the difference is noise.

How it decides is described in docs/decisions/0022-bench-statistics.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import stdev
from typing import Any

from backend_kit.wire import InvalidJson, dumps, loads
from ws_bench.config.golang import Flags
from ws_bench.config.options import parse_percent
from ws_bench.errors import UsageError
from ws_bench.record.estimates import RATE, estimates_of, window_for
from ws_bench.record.recording import Recording, load_recording, window_of
from ws_bench.record.stats import Estimate, Ratio, bootstrap_mean, log_ratio, prediction_band, ratio_of
from ws_bench.record.summary import EXIT_GATE, EXIT_OK, build_report
from ws_bench.report.report import Style, write_file

BASELINE_SCHEMA = "turnwise.ws_bench.baseline"
BASELINE_VERSION = 1
_MIN_GROUP = 3
_SINGLE_EFFECT, _GROUP_EFFECT = 0.10, 0.02
_CONFIDENCE = 0.99
_LIKE = ("agent", "message", "prompts_digest", "native", "clients", "requests_per_client", "requests", "mode", "load",
         "misbehaviour", "runtime_context", "ramp_s", "protocol", "stream_mode", "deflate")  # fmt: skip
_BEFORE = {"protocol": "ws", "stream_mode": ["messages-tuple"], "deflate": False}
"""What results say that are older than a key."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of the old and the new build, and the verdict on the difference: better, worse or noise."""

    name: str
    old: float
    new: float
    ratio: Ratio
    band: float
    """Differences up to this share are noise, whatever the interval is."""
    verdict: str


def compare_command(argv: list[str]) -> int:
    """Parse the flags, compare, print. Returns 1 if something is worse. Raises `UsageError` for unlike runs."""
    flags = _flags()
    values = flags.parse(argv)
    if values.save_baseline:
        runs = [load_recording(path) for path in values.results]
        save_baseline(values.save_baseline, runs, values.confidence, force=values.force)
        print(f"baseline of {len(runs)} runs written to {values.save_baseline}")
        return EXIT_OK
    random = Random(values.seed)  # noqa: S311 - a repeatable bootstrap
    if values.baseline:
        findings = against_baseline(
            _baseline(values.baseline), [load_recording(p) for p in values.results], force=values.force
        )
    else:
        old, new = _groups(values.results, values.old, values.new)
        noise = [load_recording(path) for path in values.noise_runs]
        findings = compare_runs(
            [load_recording(path) for path in old],
            [load_recording(path) for path in new],
            noise=noise,
            confidence=values.confidence,
            effect=values.min_effect,
            random=random,
            force=values.force,
        )
    verdict = overall(findings)
    _print(findings, verdict)
    if not (values.baseline or values.old or values.noise_runs):
        print("Two runs do not show how far runs of one build lie apart here: -noise-runs or groups of runs do.")
    if values.json:
        write_file(values.json, dumps({"verdict": verdict, "figures": [asdict(one) for one in findings]}) + b"\n")
    return EXIT_GATE if verdict == "worse" else EXIT_OK


def compare_runs(
    old: Sequence[Recording],
    new: Sequence[Recording],
    *,
    noise: Sequence[Recording] = (),
    confidence: float = _CONFIDENCE,
    effect: float | None = None,
    random: Random | None = None,
    force: bool = False,
) -> list[Finding]:
    """Compare one run with one, or groups of at least three. Raises `UsageError` for unlike configurations.

    `confidence` is that of all figures together; `noise` are runs of one build; their variation is added to the error.
    """
    refuse_unlike([*old, *new, *noise], force=force)
    draw = random or Random(0)  # noqa: S311 - a repeatable bootstrap
    single = len(old) == 1 and len(new) == 1
    if not single and min(len(old), len(new)) < _MIN_GROUP:
        raise UsageError(f"compare one run with one, or groups of at least {_MIN_GROUP}")
    steady = all_steady([*old, *new, *noise])
    if not steady:
        print("! no steady window in one of the runs: all are compared whole, ramp and end included", file=sys.stderr)
    if single:
        before, after = (estimates_of(run, window_for(run, steady=steady), draw) for run in (old[0], new[0]))
    else:
        before, after = (_group(runs, draw, steady=steady) for runs in (old, new))
    names = [name for name in before if name in after]
    between = _noise_between(noise, steady=steady)
    each = 1 - (1 - confidence) / max(len(names), 1)
    band = effect if effect is not None else (_SINGLE_EFFECT if single and not noise else _GROUP_EFFECT)
    findings = []
    for name in names:
        ratio = ratio_of(
            _with_noise(before[name], between.get(name)), _with_noise(after[name], between.get(name)), each
        )
        findings.append(Finding(name, before[name].value, after[name].value, ratio, band, _verdict(name, ratio, band)))
    return findings


def against_baseline(baseline: Mapping[str, Any], runs: Sequence[Recording], *, force: bool = False) -> list[Finding]:
    """Compare the runs' mean figures with a baseline's band. Raises `UsageError` for unlike configurations."""
    refuse_unlike(runs, force=force)
    _refuse_unlike_pair(baseline["likeness"], likeness(runs[0]), force=force)
    findings = []
    # Older baselines were made from steady windows.
    figures = [figures_of(run, steady=baseline.get("steady", True)) for run in runs]
    for name, band in baseline["figures"].items():
        values = [one[name] for one in figures if name in one]
        if not values:
            continue
        new = sum(values) / len(values)
        old = band["centre"]
        ratio = Ratio(new / old, new / band["high"], new / band["low"])
        width = max(band["high"] / old - 1, 1 - band["low"] / old)
        findings.append(Finding(name, old, new, ratio, width, _verdict(name, ratio, 0.0)))
    return findings


def save_baseline(path: str, runs: Sequence[Recording], confidence: float, *, force: bool = False) -> None:
    """Write the band in which one more run of the same build and configuration is expected.

    Raises `UsageError` for fewer than three or unlike runs, `BenchError` if the file cannot be written.
    """
    if len(runs) < _MIN_GROUP:
        raise UsageError(f"a baseline needs at least {_MIN_GROUP} runs")
    refuse_unlike(runs, force=force)
    steady = all_steady(runs)
    figures = [figures_of(run, steady=steady) for run in runs]
    names = [name for name in figures[0] if all(name in one for one in figures)]
    each = 1 - (1 - confidence) / len(names)
    bands = {}
    for name in names:
        values = [one[name] for one in figures]
        low, high = prediction_band(values, each)
        centre = (low * high) ** 0.5
        bands[name] = {
            "values": values,
            "centre": centre,
            "low": min(low, centre * (1 - _GROUP_EFFECT)),
            "high": max(high, centre * (1 + _GROUP_EFFECT)),
        }
    baseline = {
        "schema": BASELINE_SCHEMA,
        "schema_version": BASELINE_VERSION,
        "runs": len(runs),
        "confidence": confidence,
        "steady": steady,
        "likeness": likeness(runs[0]),
        "figures": bands,
    }
    write_file(path, dumps(baseline) + b"\n")


def figures_of(run: Recording, *, steady: bool) -> dict[str, float]:
    """The figures that are compared, of one run's steady window or of the whole run."""
    return {name: estimate.value for name, estimate in estimates_of(run, window_for(run, steady=steady), None).items()}


def all_steady(runs: Sequence[Recording]) -> bool:
    """Whether every run has a steady window; if not, all runs are compared as a whole."""
    return all(window_of(run) is not None for run in runs)


def likeness(run: Recording) -> dict[str, Any]:
    """What must be equal for a difference to be due to the build."""
    load = {name: value for name, value in run.config.get("load", {}).items() if name != "seed"}
    wanted = {name: run.config.get(name, _BEFORE.get(name)) for name in _LIKE if name != "load"}
    hashes = [build.get("config_hash", "") for build in run.server.builds] if run.server else []
    return {**wanted, "load": load, "server_config": hashes}


def refuse_unlike(runs: Sequence[Recording], *, force: bool) -> None:
    """Raise `UsageError` if runs differ in anything but the build, or if one has nothing to compare."""
    for run in runs:
        _refuse_unlike_pair(likeness(runs[0]), likeness(run), force=force)
        report = build_report(run)
        if report.outcome in ("FAILED", "INTERRUPTED") or report.measured is None:
            raise UsageError(f"a run with outcome {report.outcome} cannot be compared")
        if report.self_check is not None and report.self_check.limited:
            print(f"! a run was client-limited: {'; '.join(report.self_check.limits)}", file=sys.stderr)


def overall(findings: Sequence[Finding]) -> str:
    """The overall verdict: worse if any figure is, else better if any is, else noise."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in ("worse", "better") if verdict in verdicts), "noise")


def _refuse_unlike_pair(one: Mapping[str, Any], other: Mapping[str, Any], *, force: bool) -> None:
    # Compared as JSON: one of them may come from a file, where a tuple is a list.
    unlike = [name for name in other if dumps(one.get(name)) != dumps(other[name])]
    # A server without a configuration hash cannot be compared; that is no difference.
    if "server_config" in unlike and not (one["server_config"] and other["server_config"]):
        unlike.remove("server_config")
    if unlike and not force:
        shown = ", ".join(f"{name} ({one.get(name)} / {other[name]})" for name in unlike)
        raise UsageError(f"unlike configurations: {shown}; -force compares them all the same")


def _group(runs: Sequence[Recording], random: Random, *, steady: bool) -> dict[str, Estimate]:
    figures = [figures_of(run, steady=steady) for run in runs]
    names = [name for name in figures[0] if all(name in one for one in figures)]
    return {name: bootstrap_mean([one[name] for one in figures], random) for name in names}


def _noise_between(noise: Sequence[Recording], *, steady: bool) -> dict[str, float]:
    """The standard deviation among runs of one build, on the log scale, by figure."""
    if not noise:
        return {}
    if len(noise) < _MIN_GROUP:
        raise UsageError(f"-noise-runs needs at least {_MIN_GROUP} runs")
    figures = [figures_of(run, steady=steady) for run in noise]
    return {
        name: stdev([log_ratio(one[name], figures[0][name]) for one in figures])
        for name in figures[0]
        if all(name in one for one in figures)
    }


def _with_noise(estimate: Estimate, between: float | None) -> Estimate:
    if between is None:
        return estimate
    return Estimate(estimate.value, (estimate.log_error**2 + between**2) ** 0.5, estimate.degrees)


def _verdict(name: str, ratio: Ratio, band: float) -> str:
    if not ratio.differs or abs(ratio.ratio - 1) <= band:
        return "noise"
    more_is_worse = name != RATE
    return "worse" if (ratio.ratio > 1) == more_is_worse else "better"


def _flags() -> Flags:
    flags = Flags("ws_bench compare", "Compare runs: old and new, two groups of them, or a run and a baseline.")
    flags.parser.add_argument("results", nargs="*", help="OLD.json NEW.json, or the runs for a baseline")
    flags.value("old", [], _paths, "a group of runs of the old build, comma between")
    flags.value("new", [], _paths, "a group of runs of the new build")
    flags.value("noise-runs", [], _paths, "runs of one build, whose spread counts as noise")
    flags.value("baseline", "", str.strip, "compare the runs with the band in this file")
    flags.value("save-baseline", "", str.strip, "write the band of the runs to this file")
    flags.value("confidence", _CONFIDENCE, parse_percent, "of all figures together")
    flags.value("min-effect", None, parse_percent, "a smaller difference is noise (10%% for two runs, 2%% for groups)")
    flags.value("seed", 0, int, "seed of the bootstrap")
    flags.switch("force", "compare unlike configurations")
    flags.value("json", "", str.strip, "write the comparison to this file")
    return flags


def _groups(results: Sequence[str], old: Sequence[str], new: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if old and new and not results:
        return old, new
    if len(results) == 2 and not old and not new:
        return results[:1], results[1:]
    raise UsageError("compare needs OLD.json NEW.json, or -old and -new, or -baseline and runs")


def _paths(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _baseline(path: str) -> dict[str, Any]:
    try:
        baseline = loads(Path(path).read_bytes())
    except (OSError, InvalidJson) as failure:
        raise UsageError(f"cannot read {path}: {failure}") from failure
    if not isinstance(baseline, dict) or baseline.get("schema") != BASELINE_SCHEMA:
        raise UsageError(f"{path} is not a baseline")
    return baseline


def _print(findings: Sequence[Finding], verdict: str) -> None:
    style = Style.of(sys.stdout)
    print(f"{'':18}{'old':>12}{'new':>12}{'change':>9}{'interval':>19}  verdict")
    for one in findings:
        interval = f"{one.ratio.low - 1:+.1%} .. {one.ratio.high - 1:+.1%}"
        change = f"{one.ratio.ratio - 1:+.1%}"
        print(f"{one.name:18}{one.old:12.2f}{one.new:12.2f}{change:>9}{interval:>19}  {one.verdict}")
    colour = {"worse": "\033[31m", "better": "\033[32m"}.get(verdict, "")
    print(f"Verdict: {style(verdict, *([colour] if colour else []))}")
