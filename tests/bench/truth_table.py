"""What the services said, what others saw, and by how much the two differ."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend_kit.kpi.rollup import nearest_rank

BOUND = 0.02
_KEYED = re.compile(r"\[KPI\]\[SUMMARY\] (timer|gauge|counter) (\S.*?) (count=.*)$")
_LINE = re.compile(r"\[KPI\]\[SUMMARY\] (?!timer |gauge |counter )(\S+=.*)$")
_FIELD = re.compile(r"(\w+)=(\S+)")

Figures = dict[str, float]


def summary_of(output: str) -> dict[str, Figures]:
    """The last complete summary in what a service wrote: its figures by key, those of lines without a key under their
    first field (`cpu_pct`, `db_pool=main`). Words are left out."""
    found: dict[str, Figures] = {}
    for line in output.splitlines():
        if keyed := _KEYED.search(line):
            found[keyed.group(2)] = _figures(keyed.group(3))
        elif told := _LINE.search(line):
            first = told.group(1).split()[0]
            name, _, value = first.partition("=")
            found[name if _number(value) is not None or value == "n/a" else first] = _figures(told.group(1))
    return found


def line_at(output: str, mark: str, clocks_apart_s: float) -> float | None:
    """When the first line with a mark was written, by the log's own time, on the clock that is so much behind that of
    the day. None where there is none."""
    for line in output.splitlines():
        if mark in line:
            stamp, _, thousandths = line[:23].partition(",")
            second = time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
            return second + int(thousandths) / 1e3 - clocks_apart_s
    return None


def samples_of(exposition: str) -> dict[str, float]:
    """The samples of a scrape, by name with labels as it is written there."""
    found = {}
    for line in exposition.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.split(" # ")[0].rpartition(" ")
            found[name] = float(value)
    return found


def _figures(text: str) -> Figures:
    pairs = ((name, _number(value)) for name, value in _FIELD.findall(text))
    return {name: value for name, value in pairs if value is not None}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one line: `told` by the service, `seen` by another. `within` is what it may be off by in its own
    unit where 2 % says nothing; `reason` says why, or why nobody else can see it."""

    line: str
    figure: str
    told: float | None
    seen: float | None
    source: str
    within: float = 0.0
    reason: str = ""

    @property
    def off(self) -> float | None:
        """By which share of what was seen the service is off; None where that has no meaning."""
        if self.told is None or self.seen is None or (self.seen == 0 and self.told != 0):
            return None
        return 0.0 if self.told == self.seen else (self.told - self.seen) / abs(self.seen)

    @property
    def verdict(self) -> str:
        """`ok`, `MISS`, `MISSING` where the service did not say it, `unseen` where nobody else can."""
        if self.told is None:
            return "MISSING"
        if self.seen is None:
            return "unseen" if self.reason else "MISS"
        if abs(self.told - self.seen) <= self.within:
            return "ok"
        return "ok" if self.off is not None and abs(self.off) <= BOUND else "MISS"


def timer(
    key: str, told: Figures | None, seen_s: Sequence[float], source: str, *, shares: Iterable[float] = (0.5, 0.95)
) -> list[Row]:
    """Count, mean and percentiles of durations: the service's in ms, the others' in seconds."""
    told = told or {}
    ranked = sorted(second * 1e3 for second in seen_s)
    rows = [Row(key, "count", told.get("count"), len(ranked), source)]
    if ranked:
        rows.append(Row(key, "avg", told.get("avg"), sum(ranked) / len(ranked), source))
        rows += [
            Row(key, f"p{share * 100:.0f}", told.get(f"p{share * 100:.0f}"), nearest_rank(ranked, share), source)
            for share in shares
        ]
    return rows


def printed(rows: Sequence[Row]) -> list[str]:
    """The table, a line a row, and below it how many of each verdict."""
    wide = max((len(row.line) for row in rows), default=4)
    lines = [f"{'line':{wide}} {'figure':9} {'service':>12} {'seen':>12} {'by':>9} {'off':>8}  {'verdict':8} source"]
    for row in rows:
        off = "" if row.off is None else f"{row.off:+.2%}"
        by = "" if row.told is None or row.seen is None else f"{row.told - row.seen:+.2f}"
        why = f" ({row.reason})" if row.reason else ""
        lines.append(
            f"{row.line:{wide}} {row.figure:9} {_shown(row.told):>12} {_shown(row.seen):>12} {by:>9} {off:>8}"
            f"  {row.verdict:8} {row.source}{why}"
        )
    verdicts = [row.verdict for row in rows]
    lines.append(", ".join(f"{verdicts.count(one)} {one}" for one in ("ok", "MISS", "MISSING", "unseen")))
    return lines


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
