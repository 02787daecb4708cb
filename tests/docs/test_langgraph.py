"""docs/langgraph.md: its examples run against the service, and it names what the door takes and refuses."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from agentic_backend.surfaces.langgraph import add_routes, reading, stream
from tests.docs.pages import ROOT, Block, blocks, table
from tests.docs.test_readme import run
from tests.support.service import RunningService

PAGE = ROOT / "docs/langgraph.md"
EXPECTED = ("messages: 2",)
"""What each example says at its end: the question and the answer are there."""


@pytest.mark.parametrize("block", blocks(PAGE, "test"), ids=lambda block: f"line-{block.line}")
async def test_an_example_runs_against_the_service(block: Block, service: RunningService, tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, block, f"127.0.0.1:{service.port}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [words for words in EXPECTED if words not in done.stdout] == [], done.stdout + done.stderr


def test_the_page_has_the_routes_that_there_are_and_no_other() -> None:
    told = {
        f"{method} {re.sub('{.*?}', '{}', path)}"
        for routes, _ in table(PAGE, "routes", "notes")
        for part in routes.split(";")
        for method in re.findall("[A-Z]+(?=[ ,])", part.partition("`")[0])
        for path in re.findall("`(.*?)`", part)
    }
    assert told == {f"{method} {re.sub('{.*?}', '{}', path)}" for method, path in served()}


def served() -> Iterator[tuple[str, str]]:
    """Methods and paths of the door."""

    def never() -> Any:
        """No request is asked here."""

    for route in add_routes(never, never):
        assert isinstance(route, Route)
        yield from ((method, route.path) for method in route.methods or () if method != "HEAD")


def test_the_page_names_what_a_run_takes_and_what_it_refuses() -> None:
    taken = " ".join(cell for row in table(PAGE, "of a run", "") for cell in row)
    assert [mode for mode in stream.MODES if f"`{mode}`" not in taken] == []
    refused = " ".join(row[0] for row in table(PAGE, "", "why", "instead"))
    assert [name for name in (*reading._NOT_HERE, *reading._OTHER_MODES) if f"`{name}`" not in refused] == []


def test_moving_over_takes_ten_lines_each() -> None:
    (text,) = re.findall(r"^## Moving over\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == [*range(1, 11)] * 3
