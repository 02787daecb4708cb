"""The raw results of a run as one value, from which reports are computed, now or later from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from backend_kit.wire import InvalidJson, loads
from ws_bench.config.options import Cut
from ws_bench.errors import UsageError
from ws_bench.record.exposition import Figures
from ws_bench.record.postgres import PostgresView
from ws_bench.record.results import Histogram, SteadyWindow, TurnResult, in_window, steady_window
from ws_bench.record.selfcheck import GeneratorSeries

SCHEMA = "turnwise.ws_bench.run"
SCHEMA_VERSION = 2
_COLUMNS = ("first_event_ms", "first_token_ms", "tail_ms", "stall_ms", "server_ms", "frames")


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions that the run created, deleted, and could not delete."""

    created: int
    deleted: int
    delete_failed: int


@dataclass(frozen=True, slots=True)
class HistoryCheck:
    """How acknowledged turns were found in the history.

    `missing` turns are in no history, `altered` ones have another answer there or several, `disordered` sessions have
    ranks that do not increase, `unread` turns belong to sessions whose history could not be read.
    """

    acknowledged: int
    missing: int
    altered: int
    disordered: int
    unread: int
    samples: list[str]

    @property
    def good(self) -> bool:
        """Whether every acknowledged turn was found with its answer."""
        return not (self.missing or self.altered or self.disordered or self.unread)


@dataclass(frozen=True, slots=True)
class ServerView:
    """The services between two readings. Times in milliseconds; `series` are columns over time for the charts."""

    begin: float
    end: float
    turns: int
    builds: list[dict[str, str]]
    ended: dict[str, int]
    """Turns by status, including the refused ones (rejected)."""
    phases: dict[str, Figures]
    timers: dict[str, Figures]
    statements: dict[str, Figures]
    cpu: list[float | None]
    busy: float | None
    stalls: int
    lost: int
    pool_exhausted: bool
    verdict: Mapping[str, Any] | None
    series: dict[str, list[float | None]]
    failures: list[str]

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "ServerView":
        """Read what `as_json` wrote."""
        figures = {
            name: {key: Figures.from_json(one) for key, one in given[name].items()}
            for name in ("phases", "timers", "statements")
        }
        return cls(**{"ended": {}, **given, **figures})


@dataclass(slots=True)
class Recording:
    """One run. Times in seconds on the run's clock, whose zero was `started_unix`, or in milliseconds where named so.

    `config` is `config_as_json` of the run. `planned` is begin and end of an open loop's schedule.
    """

    config: dict[str, Any]
    started_unix: float
    total: int
    elapsed_s: float = 0.0
    turns: list[TurnResult] = field(default_factory=list)
    gaps: Histogram = field(default_factory=Histogram)
    connect_ms: list[float] = field(default_factory=list)
    session_ms: list[float] = field(default_factory=list)
    close_ms: list[float] = field(default_factory=list)
    sessions: SessionCounts = field(default_factory=lambda: SessionCounts(0, 0, 0))
    interrupted: bool = False
    aborted: str = ""
    """The gate that ended the run, empty if none did."""
    planned: tuple[float, float] | None = None
    dropped: int = 0
    reconnects: int = 0
    besides: dict[str, Any] = field(default_factory=dict)
    series: list[GeneratorSeries] = field(default_factory=list)
    server: ServerView | None = None
    verdict: Mapping[str, Any] | None = None
    """The service's own, where it was asked; also without its metrics."""
    postgres: PostgresView | None = None
    history: HistoryCheck | None = None
    watched: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def open_loop(self) -> bool:
        """Whether turns arrived by a schedule."""
        return self.planned is not None

    def cut(self, which: str) -> Cut:
        """`warmup` or `cooldown` of the configuration."""
        given = self.config.get("load", {}).get(which, {})
        return Cut(given.get("kind", "seconds"), given.get("amount", 0.0))

    def raw_json(self) -> dict[str, Any]:
        """The `recording` key of a result file, which `from_json` reads."""
        return {
            "started_unix": self.started_unix,
            "elapsed_s": self.elapsed_s,
            "total": self.total,
            "turns": columns_of(self.turns),
            "gaps": self.gaps.as_json(),
            "connect_ms": _rounded(self.connect_ms),
            "session_ms": _rounded(self.session_ms),
            "close_ms": _rounded(self.close_ms),
            "sessions": asdict(self.sessions),
            "interrupted": self.interrupted,
            "aborted": self.aborted,
            "planned": self.planned,
            "dropped": self.dropped,
            "reconnects": self.reconnects,
            "besides": self.besides,
            "series": [one.as_json() for one in self.series],
            "server": self.server.as_json() if self.server else None,
            "postgres": self.postgres.as_json() if self.postgres else None,
            "history": asdict(self.history) if self.history else None,
            "watched": self.watched,
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> "Recording":
        """The recording in a result file's content."""
        raw = result["recording"]
        plain = ("started_unix", "elapsed_s", "total", "connect_ms", "session_ms", "close_ms", "interrupted")
        more = ("aborted", "dropped", "reconnects", "besides", "watched")
        return cls(
            config=result["config"],
            environment=result["generator"],
            turns=turns_of(raw["turns"]),
            gaps=Histogram.from_json(raw["gaps"]),
            sessions=SessionCounts(**raw["sessions"]),
            planned=tuple(raw["planned"]) if raw["planned"] else None,
            series=[GeneratorSeries.from_json(one) for one in raw["series"]],
            server=ServerView.from_json(raw["server"]) if raw["server"] else None,
            postgres=PostgresView.from_json(raw["postgres"]) if raw["postgres"] else None,
            history=HistoryCheck(**raw["history"]) if raw["history"] else None,
            verdict=raw.get("verdict"),
            **{name: raw[name] for name in (*plain, *more)},
        )


def window_of(recording: Recording) -> SteadyWindow | None:
    """The steady window of a recording, None if the whole load was never on at once.

    In a closed loop it must contain as many ended turns as there are clients: some moment always lies between the last
    client's first ask and the first client's end, and the turns that end in it are the fastest ones.
    """
    whole = steady_window(recording.turns, planned=recording.planned)
    if whole is not None and not recording.open_loop:
        ended = in_window(recording.turns, whole, by_begin=False)
        if len(ended) < len({turn.client for turn in recording.turns if turn.sent}):
            return None
    return steady_window(
        recording.turns,
        warmup=recording.cut("warmup"),
        cooldown=recording.cut("cooldown"),
        planned=recording.planned,
    )


def load_result(path: str) -> dict[str, Any]:
    """The content of a result file of `run`. Raises `UsageError`."""
    try:
        result = loads(Path(path).read_bytes())
    except (OSError, InvalidJson) as failure:
        raise UsageError(f"cannot read {path}: {failure}") from failure
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a result file of ws_bench run")
    if result.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{path} has version {result.get('schema_version')}, this program reads {SCHEMA_VERSION}")
    return result


def load_recording(path: str) -> Recording:
    """The recording in a result file. Raises `UsageError`."""
    return Recording.from_json(load_result(path))


def columns_of(turns: Sequence[TurnResult]) -> dict[str, Any]:
    """Turns as columns, which are smaller than a list of objects. Gaps are left out: a histogram has them."""
    errors = sorted({turn.error for turn in turns})
    phases = sorted({name for turn in turns for name in turn.phases})
    top = sorted({name for turn in turns for name in turn.top_phases})
    columns: dict[str, Any] = {
        "errors": errors,
        "error": [errors.index(turn.error) for turn in turns],
        "details": {str(number): turn.detail for number, turn in enumerate(turns) if turn.detail},
        "client": [turn.client for turn in turns],
        "sent": [int(turn.sent) for turn in turns],
        "intended": [None if turn.intended is None else round(turn.intended, 6) for turn in turns],
        "asked": [round(turn.asked, 6) for turn in turns],
        "ended": [round(turn.ended, 6) for turn in turns],
        "top_phases": top,
        "phases": {name: _rounded(turn.phases.get(name) for turn in turns) for name in phases},
        "own_ms": {name: _rounded(turn.own_ms.get(name) for turn in turns) for name in phases},
    }
    return columns | {name: _rounded(getattr(turn, name) for turn in turns) for name in _COLUMNS}


def turns_of(columns: Mapping[str, Any]) -> list[TurnResult]:
    """Read what `columns_of` wrote. A column that an older file does not have is None for every turn."""
    top = frozenset(columns["top_phases"])
    turns = []
    for number, error in enumerate(columns["error"]):
        phases, own = (
            {name: column[number] for name, column in columns[kind].items() if column[number] is not None}
            for kind in ("phases", "own_ms")
        )
        turns.append(
            TurnResult(
                client=columns["client"][number],
                asked=columns["asked"][number],
                ended=columns["ended"][number],
                error=columns["errors"][error],
                detail=columns["details"].get(str(number), ""),
                sent=bool(columns["sent"][number]),
                intended=columns["intended"][number],
                phases=phases,
                own_ms=own,
                top_phases=tuple(name for name in phases if name in top),
                **{name: columns[name][number] for name in _COLUMNS if name in columns},
            )
        )
    return turns


def merge_recordings(parts: Sequence[Recording]) -> Recording:
    """Merge several generators' recordings of one load: one clock, consecutive client numbers, summed counts.

    The server's view is that of the first recording with one. Raises `UsageError` if they did not run at the same time.
    """
    zero = min(part.started_unix for part in parts)
    merged = Recording(config=dict(parts[0].config), started_unix=zero, total=sum(part.total for part in parts))
    first_client = 0
    for part in parts:
        shift = part.started_unix - zero
        merged.elapsed_s = max(merged.elapsed_s, part.elapsed_s + shift)
        merged.turns += [_shifted(turn, shift, first_client) for turn in part.turns]
        first_client += int(part.config.get("clients", 1))
        merged.gaps.merge(part.gaps)
        merged.connect_ms += part.connect_ms
        merged.session_ms += part.session_ms
        merged.close_ms += part.close_ms
        merged.dropped += part.dropped
        merged.reconnects += part.reconnects
        merged.interrupted |= part.interrupted
        merged.aborted = merged.aborted or part.aborted
        merged.series += [one.shifted(shift) for one in part.series]
    merged.config["clients"] = first_client
    counts = [asdict(part.sessions) for part in parts]
    merged.sessions = SessionCounts(**{name: sum(one[name] for one in counts) for name in counts[0]})
    merged.planned = _common_plan(parts, zero)
    _check_overlap(parts)
    merged.server = next((part.server for part in parts if part.server), None)
    merged.postgres = next((part.postgres for part in parts if part.postgres), None)
    merged.history = _merged_history([part.history for part in parts if part.history])
    merged.besides = _merged_besides([part.besides for part in parts])
    merged.watched = next((part.watched for part in parts if part.watched), {})
    merged.environment = {**parts[0].environment, "merged": [part.environment.get("argv") for part in parts]}
    return merged


def _shifted(turn: TurnResult, seconds: float, first_client: int) -> TurnResult:
    intended = None if turn.intended is None else turn.intended + seconds
    return replace(
        turn,
        client=turn.client + first_client,
        asked=turn.asked + seconds,
        ended=turn.ended + seconds,
        intended=intended,
    )


def _common_plan(parts: Sequence[Recording], zero: float) -> tuple[float, float] | None:
    """The time in which every schedule was active."""
    plans = [(part.started_unix - zero, part.planned) for part in parts]
    bounds = [(shift + plan[0], shift + plan[1]) for shift, plan in plans if plan]
    if len(bounds) != len(parts):
        return None
    return max(begin for begin, _ in bounds), min(end for _, end in bounds)


def _check_overlap(parts: Sequence[Recording]) -> None:
    last_begin = max(part.started_unix for part in parts)
    first_end = min(part.started_unix + part.elapsed_s for part in parts)
    if last_begin >= first_end:
        raise UsageError("these runs did not run at the same time: nothing to merge")


def _merged_history(checks: Sequence[HistoryCheck]) -> HistoryCheck | None:
    if not checks:
        return None
    counts = ("acknowledged", "missing", "altered", "disordered", "unread")
    sums = {name: sum(getattr(check, name) for check in checks) for name in counts}
    return HistoryCheck(**sums, samples=[text for check in checks for text in check.samples][:5])


def _merged_besides(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        for kind, counts in part.items():
            one = merged.setdefault(kind, {"came": 0, "good": 0, "errors": {}})
            one["came"] += counts["came"]
            one["good"] += counts["good"]
            for name, count in counts["errors"].items():
                one["errors"][name] = one["errors"].get(name, 0) + count
    return merged


def _rounded(values: Any) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]
