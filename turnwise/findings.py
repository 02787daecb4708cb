"""What the services found, as a table and as a verdict. Pure functions: they print and reach nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.wire import loads

_FIELDS: Final = frozenset({"what", "state", "figure", "remedy", "facts"})
_GOOD: Final = frozenset({Health.OK, Health.SLOW, Health.NOT_USED})
_GAP: Final = "  "
_MOST_CHARS: Final = 400
"""Of a text: more than any of ours has."""


@dataclass(frozen=True, slots=True)
class ServiceFindings:
    """What was found for one program: its `title`, and by which file it is configured (`config`, empty without)."""

    title: str
    config: str
    findings: Sequence[Diagnosis]


def decode_findings(line: bytes) -> list[Diagnosis]:
    """The findings of a line that a service wrote (`encode_findings`). Raises ValueError for anything else."""
    rows = loads(line)
    if not isinstance(rows, list):
        raise ValueError("not a list of findings")  # noqa: TRY004 - of a text that was read
    return [_decoded(row) for row in rows]


def exit_code(sections: Sequence[ServiceFindings]) -> int:
    """0 where everything that is in use is ok or slow, else 1."""
    return 0 if all(finding.state in _GOOD for section in sections for finding in section.findings) else 1


def together(sections: Sequence[ServiceFindings]) -> list[Diagnosis]:
    """What no service sees alone: connections of several to one server of Postgres."""
    demands: dict[str, list[tuple[int, int]]] = {}
    for section in sections:
        for finding in section.findings:
            server, most, room = (finding.facts.get(name) for name in ("server", "most", "room"))
            if isinstance(server, str) and isinstance(most, int) and isinstance(room, int):
                demands.setdefault(server, []).append((most, room))
    return [_sum_of(server, found) for server, found in demands.items() if len(found) > 1]


def table(sections: Sequence[ServiceFindings]) -> str:
    """The findings for a terminal: what, its state, the figure; below what is not ok, what to do."""
    findings = [finding for section in sections for finding in section.findings]
    what = max((len(finding.what) for finding in findings), default=0)
    state = max(len(one) for one in Health)
    lines = []
    for section in sections:
        lines.append(section.title + (f" ({section.config})" if section.config else ""))
        for finding in section.findings:
            lines.append(_row(finding, what, state).rstrip())
            if finding.remedy:
                lines.append(f"{_GAP}{'':{what}}{_GAP}{'':{state}}{_GAP}-> {finding.remedy}")
    return "\n".join([*map(_clean, lines), verdict(sections)])


def verdict(sections: Sequence[ServiceFindings]) -> str:
    """The last line: how many findings there are that something must be done about."""
    counts = dict.fromkeys(Health, 0)
    for section in sections:
        for finding in section.findings:
            counts[finding.state] += 1
    parts = [f"{counts[state]} {state}" for state in (Health.AWAY, Health.WRONG, Health.SLOW) if counts[state]]
    return ", ".join(parts) if parts else f"all well: {counts[Health.OK]} ok"


def as_json(sections: Sequence[ServiceFindings]) -> dict[str, Any]:
    """The same for a machine, with the exit code."""
    return {
        "exit_code": exit_code(sections),
        "sections": [
            {"title": section.title, "config": section.config, "findings": [asdict(one) for one in section.findings]}
            for section in sections
        ],
    }


def _decoded(row: Any) -> Diagnosis:
    if not isinstance(row, dict) or row.keys() != _FIELDS:
        raise ValueError("not a finding")
    texts, facts = [row[name] for name in ("what", "figure", "remedy")], row["facts"]
    if not all(isinstance(text, str) and len(text) <= _MOST_CHARS for text in texts) or not isinstance(facts, dict):
        raise ValueError("not a finding")
    if not all(type(fact) in (int, str) for fact in facts.values()):
        raise ValueError("not a finding's facts")
    return Diagnosis(texts[0], Health(row["state"]), texts[1], texts[2], facts)


def _sum_of(server: str, found: Sequence[tuple[int, int]]) -> Diagnosis:
    most, room = sum(one[0] for one in found), min(one[1] for one in found)
    figure = f"{most} at most by all services at {server}, room for {room}"
    if most <= room:
        return Diagnosis("connections together", Health.OK, figure)
    remedy = "raise max_connections, or lower storage.postgres.pool_size and max_overflow of these services"
    return Diagnosis("connections together", Health.WRONG, figure, remedy)


def _row(finding: Diagnosis, what: int, state: int) -> str:
    return f"{_GAP}{finding.what:{what}}{_GAP}{finding.state.value:{state}}{_GAP}{finding.figure}"


def _clean(line: str) -> str:
    """Without characters that a terminal would act on: some of it was said by other programs."""
    return "".join(one if one.isprintable() else "?" for one in line)


def sections_with(sections: Sequence[ServiceFindings], more: Sequence[Diagnosis]) -> Iterator[ServiceFindings]:
    """The sections, and one with findings of no single program."""
    yield from sections
    if more:
        yield ServiceFindings("together", "", more)
