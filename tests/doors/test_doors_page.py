"""docs/doors.md: each cell of its table is a case, and what the cell shows in backticks went over the wire in it."""

import re

import pytest

from tests.docs.pages import ROOT, table
from tests.doors.cases import COLUMNS, Case, Lab
from tests.doors.clients.__main__ import CLIENTS
from tests.doors.foreign import AgUi, Chat
from tests.doors.instead import INSTEAD, OWN
from tests.doors.langgraph import LangGraph
from tests.doors.native import Compatible, LeavingStream, Native, Rest, Stream
from tests.doors.responses import Background, Responses
from tests.doors.talk import Talk
from tests.doors.tools import Following, Mcp
from tests.support.mock_llm import MockModel
from tests.support.service import StartService
from tests.support.tool_server import ToolServer

PAGE = ROOT / "docs/doors.md"
DOORS: dict[str, type[Talk]] = {
    door.row: door for door in (Native, Compatible, Stream, Rest, Chat, Responses, AgUi, LangGraph, Mcp)
}
STANDS_IN: dict[tuple[str, str], type[Talk]] = {
    (Stream.row, "cancel"): LeavingStream,
    (Responses.row, "resume"): Background,
    **{(Mcp.row, column): Following for column in ("stream", "resume", "cancel")},
}
"""Clients of a door that differ from its others for one cell."""
ROWS = table(PAGE, "door", *COLUMNS)
CELLS = {
    (re.sub(r"\]\(.*?\)|\[", "", row[0]), column): said
    for row in ROWS
    for column, said in zip(COLUMNS, row[1:], strict=True)
}


@pytest.fixture
async def lab(start_service: StartService, tool_server: ToolServer, mock_llm: MockModel) -> Lab:
    return Lab(start_service, tool_server, mock_llm)


def case_of(cell: tuple[str, str]) -> Case:
    return INSTEAD.get(cell) or OWN.get(cell) or COLUMNS[cell[1]]


def test_each_cell_has_its_case_and_each_case_its_cell() -> None:
    assert list(CELLS) == [(door, column) for door in DOORS for column in COLUMNS]
    assert {*INSTEAD, *OWN, *STANDS_IN} <= {*CELLS}
    assert {cell for cell, said in CELLS.items() if said.startswith("no")} == {*INSTEAD}
    assert "" not in CELLS.values()


def test_each_client_that_the_page_names_is_held_by_what_is_there() -> None:
    rows = table(PAGE, "client", "door", "held by")
    held_by = {name for row in rows for name in re.findall(r"`(.+?)`", row[2])}
    assert "make doors-clients" in held_by
    assert [name for name in held_by - {"make doors-clients"} if not (ROOT / name).is_file()] == []
    assert sum(row[2] == "`make doors-clients`" for row in rows) == len(CLIENTS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}, {cell[1]}")
async def test_a_cell_holds(cell: tuple[str, str], lab: Lab) -> None:
    await case_of(cell)(STANDS_IN.get(cell) or DOORS[cell[0]], lab)
    shown = re.findall(r"`(.+?)`", CELLS[cell])
    assert [word for word in shown if not all(part in lab.wire for part in re.split(r"\{\w+\}", word))] == []
