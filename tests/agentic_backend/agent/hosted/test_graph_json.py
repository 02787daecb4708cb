"""What a graph holds as JSON: whatever its author keeps in it."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Overwrite
from pydantic import BaseModel

from agentic_backend.agent.hosted.graph_json import as_json, plain
from backend_kit.wire import loads


class Colour(Enum):
    RED = 1


class Word(StrEnum):
    YES = "yes"


class Card(BaseModel):
    title: str


@dataclass
class Pair:
    left: Any
    right: Any


class Named:
    def __str__(self) -> str:
        return "named"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True], 3: "x"}, {"a": [1, 2.5, None, True], "3": "x"}),
        ((1, {2}), [1, [2]]),
        (Card(title="T"), {"title": "T"}),
        (Pair(Card(title="T"), (1,)), {"left": {"title": "T"}, "right": [1]}),
        (Overwrite([Colour.RED]), [1]),
        (Word.YES, "yes"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Named(), "named"),
        (Pair, str(Pair)),
    ],
)
def test_a_value_is_told_by_what_it_has(value: Any, expected: Any) -> None:
    assert plain(value) == loads(as_json(value)) == expected


def test_a_message_has_the_shape_of_langgraphs_api() -> None:
    assert plain(HumanMessage("Hi", id="h1")).items() >= {"content": "Hi", "id": "h1", "type": "human"}.items()


@pytest.mark.parametrize("failure", [ValueError("the prompt was: s3cret"), KeyError("s3cret")])
def test_of_a_failure_that_a_graph_keeps_its_kind_is_told_alone(failure: Exception) -> None:
    assert loads(as_json({"failures": [failure]})) == {"failures": [type(failure).__name__]}


def test_a_value_that_holds_itself_has_an_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert b'"list"' in as_json(value)
