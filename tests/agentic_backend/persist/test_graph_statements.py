"""Parts of a graph's state are encoded where that keeps nobody waiting."""

import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from agentic_backend.agent.hosted.state_writes import WritesPart
from agentic_backend.persist.graph_statements import encoded

WHERE: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}


class Noted(BaseModel):
    """Notes in which thread it is encoded."""

    threads: list[int] = []

    def model_dump(self, **options: Any) -> dict[str, Any]:
        self.threads.append(threading.get_ident())
        return super().model_dump(**options)


async def test_a_value_that_holds_itself_is_refused_and_holds_nobody_up() -> None:
    endless: list[Any] = [{}]
    endless[0]["again"] = endless
    with pytest.raises(TypeError):
        await encoded([WritesPart(WHERE, [("messages", endless)], "a task", "")])


@pytest.mark.parametrize(
    ("value", "on_the_loop"),
    [
        ([HumanMessage("Hello")] * 20, True),
        ([HumanMessage("Hello")] * 100, False),
        ({"rows": [{"a": 1}] * 1000}, False),
        ({"a": {"b": {"c": [1] * 1000}}}, False),
        ([HumanMessage("Hello", additional_kwargs={"table": [[1, 2]] * 1000})], False),
        ("a" * 100_000, True),
    ],
)
async def test_what_takes_long_is_encoded_in_a_thread(value: object, on_the_loop: bool) -> None:
    noted = Noted()
    await encoded([WritesPart(WHERE, [("messages", value), ("noted", noted)], "a task", "")])
    assert noted.threads
    assert all((one == threading.get_ident()) == on_the_loop for one in noted.threads)
