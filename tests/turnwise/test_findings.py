"""The table, the verdict and the exit code of `turnwise doctor`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_kit.doctor.checks import Diagnosis, Health, encode_findings
from backend_kit.wire import dumps
from turnwise.findings import (
    ServiceFindings,
    as_json,
    decode_findings,
    exit_code,
    sections_with,
    table,
    together,
    verdict,
)

texts = st.text(max_size=40)
findings = st.builds(
    Diagnosis,
    what=texts,
    state=st.sampled_from(Health),
    figure=texts,
    remedy=st.text(min_size=1, max_size=40),
    facts=st.dictionaries(texts, st.integers(0, 2**40) | texts, max_size=3),
)


def section(*found: Diagnosis) -> ServiceFindings:
    return ServiceFindings("agentic", "agentic.yaml", found)


def demand(server: str, most: int, room: int) -> Diagnosis:
    return Diagnosis("connections", Health.OK, "", facts={"server": server, "most": most, "room": room})


@pytest.mark.parametrize("state", list(Health))
def test_what_must_be_done_about_comes_with_what_to_do(state: Health) -> None:
    silent = state in (Health.OK, Health.NOT_USED)
    if silent:
        assert Diagnosis("x", state).remedy == ""
    else:
        with pytest.raises(ValueError, match=f"x: {state.value}"):
            Diagnosis("x", state, "1 ms")


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((), 0),
        ((Health.OK, Health.SLOW, Health.NOT_USED), 0),
        ((Health.OK, Health.WRONG), 1),
        ((Health.AWAY, Health.OK), 1),
    ],
)
def test_the_exit_code_is_one_where_something_in_use_is_wrong_or_away(states: tuple[Health, ...], code: int) -> None:
    rows = [Diagnosis("x", state, "1 ms", "do") for state in states]
    assert exit_code([section(*rows)]) == exit_code([section(), section(*rows)]) == code


@given(st.lists(findings, max_size=5))
def test_findings_come_out_of_a_line_as_they_went_in(found: list[Diagnosis]) -> None:
    line = encode_findings(found)
    assert b"\n" not in line
    assert decode_findings(line) == found


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {"what": "x", "state": "fine", "figure": "", "remedy": "", "facts": {}},
        {"what": 1, "state": "ok", "figure": "", "remedy": "", "facts": {}},
        {"what": "x", "state": "ok", "figure": "", "remedy": "", "facts": []},
        {"what": "x", "state": "ok", "figure": "", "remedy": "", "facts": {"a": [1]}},
        {"what": "x", "state": "wrong", "figure": "", "remedy": "", "facts": {}},
        {"what": "x", "state": "ok", "figure": "y" * 401, "remedy": "", "facts": {}},
        {"what": "x", "state": "ok", "figure": "", "remedy": "", "facts": {}, "more": 1},
    ],
)
def test_what_is_no_finding_is_refused(row: Any) -> None:
    for line in (dumps([row]), dumps(row), b"", b"no json"):
        with pytest.raises((ValueError, TypeError)) as refused:
            decode_findings(line)
        assert isinstance(refused.value, ValueError)


def test_the_table_has_a_row_for_each_and_a_line_of_what_to_do() -> None:
    rows = [Diagnosis("postgres", Health.OK, "1.0 ms"), Diagnosis("spool", Health.SLOW, "24 ms", "another disk")]
    assert table(
        [section(*rows), ServiceFindings("installed", "", [Diagnosis("turnwise", Health.NOT_USED)])]
    ).splitlines() == [
        "agentic (agentic.yaml)",
        "  postgres  ok        1.0 ms",
        "  spool     slow      24 ms",
        "                      -> another disk",
        "installed",
        "  turnwise  not used",
        "1 slow",
    ]


@given(st.lists(findings, max_size=5))
def test_no_line_of_the_table_can_move_a_terminal(found: list[Diagnosis]) -> None:
    assert all(line.isprintable() for line in table([section(*found)]).split("\n"))
    assert len(table([section(*found)]).split("\n")) == 2 + len(found) * 2


def test_the_last_line_counts_what_must_be_done_about() -> None:
    assert verdict([section(Diagnosis("x", Health.OK), Diagnosis("y", Health.NOT_USED))]) == "all well: 1 ok"
    rows = [Diagnosis("x", state, "", "do") for state in (Health.SLOW, Health.AWAY, Health.WRONG, Health.AWAY)]
    assert verdict([section(*rows)]) == "2 away, 1 wrong, 1 slow"


def test_connections_of_services_on_one_server_are_added_up() -> None:
    one, other = section(demand("db:5432", 60, 97)), section(demand("db:5432", 30, 97))
    (found,) = together([one, other])
    assert (found.state, found.figure) == (Health.OK, "90 at most by all services at db:5432, room for 97")
    (found,) = together([one, section(demand("db:5432", 38, 99))])
    assert (found.state, found.figure) == (Health.WRONG, "98 at most by all services at db:5432, room for 97")
    assert together([one, section(demand("other:5432", 90, 97))]) == together([one]) == []


def test_what_is_of_no_single_program_gets_a_section_of_its_own() -> None:
    assert [one.title for one in sections_with([section()], [])] == ["agentic"]
    assert [one.title for one in sections_with([section()], [Diagnosis("x", Health.OK)])] == ["agentic", "together"]


def test_a_machine_gets_the_same_with_the_exit_code() -> None:
    row = Diagnosis("x", Health.AWAY, "no answer", "start it", {"most": 3})
    assert as_json([section(row)]) == {
        "exit_code": 1,
        "sections": [
            {
                "title": "agentic",
                "config": "agentic.yaml",
                "findings": [
                    {"what": "x", "state": "away", "figure": "no answer", "remedy": "start it", "facts": {"most": 3}}
                ],
            }
        ],
    }
