import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import meta

from agentic_backend.chat.frames import parse_compatible, parse_native
from agentic_backend.errors import BadRequest, UnknownType
from backend_kit.wire import CODES, Code
from tests.docs.pages import ROOT, Block, blocks, table
from tests.support.schema import NAMES, accepts, schema, validate_compatible, validate_native

PAGE = ROOT / "docs/protocol.md"
EXAMPLES = blocks(PAGE, "example")
OPEN = {
    "ToolCallPart.args",
    "GeoPart.geojson",
    "GeoPart.style",
    "Metadata.runtime_context",
    "Extras",
    "Extras.note",
    "HitlPayload",
    "HitlPayload.metadata",
    "HitlQuestion",
    "HitlQuestion.metadata",
    "ActionRequest",
    "ActionRequest.args",
    "ActionRequest.arguments",
    "ReviewConfig",
    "Session.preferences",
}
"""Where what the server sends has keys that are not the protocol's to name."""
MESSAGE = {
    "session_id": "s1",
    "exchange_id": "e1",
    "rank": 0,
    "timestamp": "2026-11-20T23:09:19.240843Z",
    "role": "user",
    "channel": "final",
    "parts": [{"type": "text", "text": "Hello"}],
    "metadata": {},
}
ASK = {"type": "ask", "session_id": "s1", "agent_id": "a1", "message": "Hello"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: f"line-{block.line}")
def test_each_example_of_the_page_is_what_the_schema_says(example: Block) -> None:
    frame = json.loads(example.text)
    if example.name == "message":
        validate_compatible({"type": "stream", "message": frame})
    elif example.name == "native-server":
        validate_native(frame)
    elif example.name == "compatible-server":
        validate_compatible(frame)
    else:
        assert accepts(example.name, frame)
        parse = parse_native if example.name == "native-client" else parse_compatible
        parse(example.text, 32_000)


@pytest.mark.parametrize("name", NAMES)
def test_each_frame_has_an_example_on_the_page(name: str) -> None:
    shown = {json.loads(block.text).get("type", "ask") for block in EXAMPLES if block.name == name}
    root = schema(name)
    known = {root["$defs"][one["$ref"].rpartition("/")[2]]["properties"]["type"]["const"] for one in root["oneOf"]}
    assert known - shown <= {"pong"}  # shown in a sentence
    assert shown <= known


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_one(name: str) -> None:
    meta.validate(schema(name))


@pytest.mark.parametrize("name", ["native-server", "compatible-server"])
def test_what_the_server_sends_is_closed_but_for_named_places(name: str) -> None:
    found = {
        path
        for definition, body in schema(name)["$defs"].items()
        for path, node in objects(definition, body)
        if node.get("additionalProperties") is not False
    }
    assert found == OPEN


def objects(path: str, node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema of an object below a node, with its place."""
    if isinstance(node, dict):
        kinds = node.get("type", ())
        if "object" in ([kinds] if isinstance(kinds, str) else kinds):
            yield path, node
        for key, value in node.items():
            if key != "required":
                yield from objects(path if key in ("properties", "items") else f"{path}.{key}", value)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "pong", "seq": 1},
        {"type": "delta", "session_id": "s", "exchange_id": "e", "seq": 0, "rank": 0, "channel": "final", "text": ""},
        {"type": "message", "session_id": "s", "exchange_id": "e", "seq": 1, "message": {**MESSAGE, "token": "x"}},
        {"type": "error", "code": "no_such_code", "message": "", "retryable": True, "request_id": ""},
        {"type": "error", "session_id": "s", "exchange_id": "e", "code": "internal", "message": "", "retryable": False},
        {"type": "awaiting_human"},
        {"type": "awaiting_human", "session_id": "s", "exchange_id": "e", "seq": 6, "payload": {"question": "?"}},
        {},
        [],
    ],
)
def test_a_frame_that_is_not_the_protocols_is_refused(frame: Any) -> None:
    with pytest.raises(AssertionError, match="native-server"):
        validate_native(frame)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"client_exchange_id": None},
        {"client_exchange_id": "x" * 129},
        {"if_busy": "queue"},
        {"if_busy": "later"},
        {"on_disconnect": None},
        {"message": ""},
        {"message": "a\u0000b"},
        {"message": 1},
        {"session_id": ""},
        {"session_id": None},
        {"more": 1},
        {"runtime_context": {"language": "fr", "deep_search": True, "selected_document_uids": ["d1"]}},
        {"runtime_context": {"deep_search": 1}},
        {"runtime_context": {"user_id": "b"}},
        {"runtime_context": {"search_policy": "fuzzy"}},
        {"runtime_context": None},
        {"type": "resume"},
        {"after_rank": -1},
        {"after_rank": None, "regenerate": None},
        {"after_rank": -2},
        {"after_rank": 2**31 - 1},
        {"after_rank": "1"},
        {"regenerate": "e1"},
        {"regenerate": "e1", "message": ""},
        {"regenerate": "e1", "message": "", "after_rank": None},
        {"regenerate": "e1", "message": "", "after_rank": 1},
        {"regenerate": "", "message": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["native-client", "compatible-client"])
def test_the_schema_takes_the_asks_that_the_service_takes(name: str, change: dict[str, Any]) -> None:
    agree(name, {**ASK, **change})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"payload": "yes"},
        {"payload": "a\u0000b"},
        {"payload": None},
        {"payload": [1]},
        {"payload": {"choice_id": "allow", "more": [1, None]}},
        {"exchange_id": None},
        {"agent_id": ""},
        {"more": 1},
        {"runtime_context": {"language": "fr"}},
        {"runtime_context": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["native-client", "compatible-client"])
def test_the_schema_takes_the_answers_that_the_service_takes(name: str, change: dict[str, Any]) -> None:
    head = {"type": "human_resume", "session_id": "s1", "exchange_id": "e1", "agent_id": "a1", "payload": {}}
    agree(name, {**head, **change})


def agree(name: str, frame: dict[str, Any]) -> None:
    """Schema and parser take the frame, or neither does."""
    parse = parse_native if name == "native-client" else parse_compatible
    try:
        parse(json.dumps(frame), 32_000)
        taken = True
    except (BadRequest, UnknownType):
        taken = False
    assert accepts(name, frame) == taken


def test_the_table_of_codes_says_what_the_code_says() -> None:
    rows = table(PAGE, "code", "HTTP", "retryable", "text", "when")
    said = [tuple(row[:4]) for row in rows]
    assert said == [
        (f"`{code.value}`", str(CODES[code].status), "yes" if CODES[code].retryable else "no", CODES[code].en)
        for code in Code
    ]
    assert [row[0] for row in rows if not row[4]] == []


def test_the_schemas_know_the_same_codes() -> None:
    for name in ("native-server", "compatible-server"):
        assert schema(name)["$defs"]["Code"]["enum"] == [code.value for code in Code]
