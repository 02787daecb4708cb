"""Questions with images: what the model is shown, what is stored, and what is refused before a model is called."""

from typing import Any

import pytest

from agentic_backend.agent import AgentKit
from agentic_backend.agent.kit import NamedModel
from agentic_backend.session.images import Image
from agentic_backend.session.models import AskRecord
from agentic_backend.session.stream import Failed, Final, Turn
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import USER, FakeModel, MemoryStorage, TurnProcess, session_of
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code
from tests.agentic_backend.session.gated_turns import ended

MEGABYTE = 1024 * 1024


def image(name: str, content: bytes = b"x") -> Image:
    return Image(name, f"{name}.png", "image/png", 4, 3, content)


def shown() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


@pytest.fixture
def storage() -> MemoryStorage:
    storage = MemoryStorage(session_of("A"))
    storage.shown = {name: image(name) for name in ("i1", "i2", "i3")}
    return storage


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(*map(str, range(20)))


@pytest.fixture
def kit(model: FakeModel) -> AgentKit:
    """A model that sees and one that does not."""
    models = {"default": NamedModel(model, "fake", vision=True), "blind": NamedModel(model, "fake")}
    return AgentKit(model, "fake", models=models)


@pytest.fixture
def turns(storage: MemoryStorage, tasks: TaskRegistry, kit: AgentKit) -> TurnProcess:
    return TurnProcess(storage, tasks, [AgentSettings(id="A", name="A", further_models=("blind",))], kit)


def told(model: FakeModel) -> list[Any]:
    """What the model was told last, without instructions."""
    return [message.content for message in model.asked[-1].messages if message.type != "system"]


async def final(turn: Turn) -> Final:
    end = await ended(turn)
    assert isinstance(end, Final), end
    return end


async def refusal(turn: Turn) -> tuple[Code, str | None]:
    end = await ended(turn)
    assert isinstance(end, Failed)
    assert end.refused
    return end.code, end.field


async def test_the_model_sees_those_of_the_question_and_of_earlier_ones(turns: TurnProcess, model: FakeModel) -> None:
    end = await final(turns.ask("e1", "What is this?", images=("i1", "i2")))
    assert told(model) == [[{"type": "text", "text": "What is this?"}, shown(), shown()]]
    assert end.messages[0].parts == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "url": "chatbot/upload/i1/image", "alt": "i1.png"},
        {"type": "image_url", "url": "chatbot/upload/i2/image", "alt": "i2.png"},
    ]
    await final(turns.ask("e2", "And left of it?"))
    assert told(model) == [[{"type": "text", "text": "What is this?"}, shown(), shown()], "0", "And left of it?"]


async def test_a_regenerated_answer_and_a_repeated_ask_are_to_the_same_images(
    turns: TurnProcess, model: FakeModel
) -> None:
    await final(turns.ask("e1", "What is this?", images=("i1",)))
    end = await final(turns.ask("e2", "", regenerate="e1"))
    assert told(model) == [[{"type": "text", "text": "What is this?"}, shown()]]
    assert end.messages[0].images == ("i1",)
    again = await final(turns.ask("e2", "", regenerate="e1"))
    assert [message.json for message in again.messages] == [message.json for message in end.messages]
    assert await refusal(turns.ask("e1", "What is this?", images=("i2",))) == (Code.CONFLICT, None)
    assert len(model.asked) == 2


async def test_an_answer_is_made_again_without_what_was_deleted(
    turns: TurnProcess, model: FakeModel, storage: MemoryStorage
) -> None:
    await final(turns.ask("e1", "What is this?", images=("i1", "i2")))
    del storage.shown["i1"]
    assert await refusal(turns.ask("e2", "And these?", images=("i1", "i2"))) == (Code.ATTACHMENT_NOT_FOUND, "images")
    end = await final(turns.ask("e3", "", regenerate="e1"))
    assert told(model) == [[{"type": "text", "text": "What is this?"}, shown()]]
    assert end.messages[0].images == ("i2",)


async def test_a_model_that_does_not_see_is_not_called(
    turns: TurnProcess, model: FakeModel, storage: MemoryStorage
) -> None:
    turn = turns.ask("e1", "What is this?", images=("i1",), model="blind")
    assert await refusal(turn) == (Code.MODEL_WITHOUT_VISION, "images")
    assert (len(model.asked), storage.history(), storage.asks) == (0, [], [])
    await final(turns.ask("e1", "What is this?", images=("i1",)))
    await final(turns.ask("e2", "Thank you.", model="blind"))
    assert told(model) == ["What is this?", "0", "Thank you."], "the words of what was asked with images"


@pytest.mark.parametrize("asked", [("i9",), ("i1", "i9")])
async def test_what_is_no_image_of_the_session_is_refused(
    turns: TurnProcess, model: FakeModel, asked: tuple[str, ...]
) -> None:
    turn = turns.ask("e1", "What is this?", images=asked)
    assert await refusal(turn) == (Code.ATTACHMENT_NOT_FOUND, "images")
    assert not model.asked


async def test_those_that_fit_are_shown_the_question_s_first(
    turns: TurnProcess, model: FakeModel, storage: MemoryStorage
) -> None:
    large = {f"l{number}": image(f"l{number}", bytes(4 * MEGABYTE)) for number in range(3)}
    storage.shown |= large
    assert await refusal(turns.ask("e1", "All?", images=tuple(large))) == (Code.ATTACHMENT_TOO_LARGE, "images")
    await final(turns.ask("e2", "One?", images=("l0", "i1")))
    await final(turns.ask("e3", "Two?", images=("l1", "l2")))
    first, _, second = told(model)
    assert [len(first), len(second)] == [2, 3], "of the first question the large one is left out"


async def test_no_more_than_ten_are_shown(turns: TurnProcess, model: FakeModel, storage: MemoryStorage) -> None:
    storage.shown = {f"n{number}": image(f"n{number}") for number in range(12)}
    names = list(storage.shown)
    await final(turns.ask("e1", "These?", images=tuple(names[:6])))
    await final(turns.ask("e2", "And these?", images=tuple(names[6:])))
    first, _, second = told(model)
    assert [len(first) - 1, len(second) - 1] == [4, 6]


async def test_an_image_that_was_deleted_since_is_left_out(
    turns: TurnProcess, model: FakeModel, storage: MemoryStorage
) -> None:
    await final(turns.ask("e1", "What is this?", images=("i1", "i2")))
    del storage.shown["i1"]
    await final(turns.ask("e2", "And now?"))
    assert told(model)[0] == [{"type": "text", "text": "What is this?"}, shown()]


async def test_a_turn_that_was_cut_off_runs_again_with_its_images(
    turns: TurnProcess, model: FakeModel, storage: MemoryStorage, tasks: TaskRegistry, kit: AgentKit
) -> None:
    await final(turns.ask("e1", "What is this?", images=("i1",)))
    later = MemoryStorage(session_of("A"))
    later.shown = storage.shown
    later.left_over = [AskRecord.decode(storage.asks[0].encode())]
    process = TurnProcess(later, tasks, [AgentSettings(id="A", name="A")], kit)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    assert turn is not None
    end = await final(turn)
    assert end.messages[0].json == storage.asks[0].user_message.json
    assert told(model) == [[{"type": "text", "text": "What is this?"}, shown()]]
    assert len(model.asked) == 2
