"""Where a request's fault is said to be, and that no text of a client's is in it."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend_kit.wire import field_of


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = Field(default=1, ge=1)


class Outer(BaseModel):
    name: str
    inner: Inner = Inner()
    many: list[Inner] = []
    either: dict[str, Any] | int = 1
    named: dict[str, int] = {}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "a", "inner": {"size": 0}}, "inner.size"),
        ({"name": "a", "inner": 7}, "inner"),
        ({"name": "a", "many": [{}, {"size": "x"}]}, "many[1].size"),
        ({"name": "a", "either": "x"}, "either"),
        # What the client called something itself is never said.
        ({"name": "a", "inner": {"canary": 1}}, "inner"),
        ({"name": "a", "many": [{"canary": 1}]}, "many[0]"),
        ({"name": "a", "named": {"canary 7": "x"}}, "named"),
    ],
)
def test_the_first_fault_has_its_place(value: Any, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(value)
    assert field_of(refused.value.errors()) == field


@pytest.mark.parametrize(
    ("problem", "field"),
    [
        ({"type": "missing", "loc": ("body", "name")}, "name"),
        ({"type": "missing", "loc": ("body",)}, None),
        ({"type": "json_invalid", "loc": ("body", 17)}, None),
        ({"type": "extra_forbidden", "loc": ("body", "canary")}, None),
        ({"type": "int_parsing", "loc": ("query", "limit")}, "limit"),
        ({"type": "string_type", "loc": ("body", "say", "str")}, "say"),
    ],
)
def test_leading_parts_that_are_no_field_are_left_out(problem: dict[str, Any], field: str | None) -> None:
    assert field_of([problem], skip=1) == field
