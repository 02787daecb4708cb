"""A conversation as markdown, and the name of its file."""

import pytest

from agentic_backend.events import ChatMessage, text_part
from agentic_backend.rest.export import disposition, markdown, markdown_head
from agentic_backend.session.models import Session


def session(title="A title"):
    return Session("s1", "ada", "Rico", title, "2026-03-01T00:00:00.000000Z")


def message(rank, role, channel, parts, **metadata):
    return ChatMessage.build(
        session_id="s1",
        exchange_id="e1",
        rank=rank,
        role=role,
        channel=channel,
        parts=parts,
        metadata=metadata,
        timestamp="2026-03-01T00:00:00.000000Z",
    ).json


def body(*messages, title="A title"):
    return (markdown_head(session(title)) + markdown(messages)).decode()


@pytest.mark.parametrize(
    ("title", "plain", "name"),
    [
        ("A title", "conversation-A-title.md", "conversation-A-title.md"),
        ("", "conversation.md", "conversation.md"),
        ("../../etc/passwd", "conversation-etc-passwd.md", "conversation-etc-passwd.md"),
        ("CON", "conversation-CON.md", "conversation-CON.md"),
        ('a"b\r\nX: y;\\', "conversation-a-b-X-y.md", "conversation-a-b-X-y.md"),
        ("été 東京", "conversation-e-te.md", "conversation-%C3%A9t%C3%A9-%E6%9D%B1%E4%BA%AC.md"),
        ("\u202egpj.exe", "conversation-gpj-exe.md", "conversation-gpj-exe.md"),
        ("_.-", "conversation.md", "conversation.md"),
        ("x" * 200, f"conversation-{'x' * 60}.md", f"conversation-{'x' * 60}.md"),
    ],
)
def test_a_title_makes_a_safe_name(title, plain, name):
    assert disposition(session(title), "md") == f"attachment; filename=\"{plain}\"; filename*=UTF-8''{name}"


def test_each_message_has_a_heading():
    text = body(
        message(0, "user", "final", [text_part("Why?")]),
        message(1, "assistant", "thought", [text_part("Let me see.")]),
        message(2, "assistant", "tool_call", [{"type": "tool_call", "call_id": "c", "name": "look", "args": {"a": 1}}]),
        message(3, "tool", "tool_result", [{"type": "tool_result", "call_id": "c", "ok": True, "content": "a ``` b"}]),
        message(4, "assistant", "final", [text_part("Because.")], agent_id="Rico"),
        title="A\ntitle",
    )
    headings = [line for line in text.splitlines() if line.startswith("#")]
    answer = "## Answer of Rico"
    assert headings == ["# A title", "## Question", "## Thought", "## Tool call", "## Tool result", answer]
    assert '`look`\n\n```json\n{"a":1}\n```' in text
    assert "````\na ``` b\n````" in text
    assert text.endswith("Because.\n")


def test_sources_follow_and_citations_do_not_repeat_them():
    citation = {"type": "link", "kind": "citation", "href": "/documents/d", "title": "Not here"}
    hits = [{"title": "Manual", "section": "Setup", "page": 3}, {"file_name": "a.pdf"}, {"uid": "u"}]
    text = body(message(0, "assistant", "final", [text_part("As in [1]."), citation], sources=hits))
    assert "Sources:\n\n1. Manual (Setup, 3)\n2. a.pdf\n3. u\n" in text
    assert "Not here" not in text
    assert "## Answer\n" in text


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"extras": {"error": "llm_timeout"}, "finish_reason": "other"}, "*Failed: llm_timeout*"),
        ({"finish_reason": "cancelled"}, "*Stopped.*"),
    ],
)
def test_an_answer_that_is_none_says_so(metadata, words):
    assert words in body(message(0, "assistant", "final", [text_part("")], **metadata))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "code", "language": "python", "code": "print(1)"}, "```python\nprint(1)\n```"),
        ({"type": "code", "language": "a\nb", "code": "1"}, "```\n1\n```"),
        ({"type": "link", "kind": "download", "href": "https://a/b c", "title": "File"}, "[File](<https://a/b c>)"),
        ({"type": "image_url", "url": "https://a/i.png", "alt": None}, "[image](<https://a/i.png>)"),
        ({"type": "geo", "geojson": {"type": "Point"}}, '```json\n{"type":"Point"}\n```'),
        ({"type": "new"}, "# Conversation"),
    ],
)
def test_each_kind_of_part(part, words):
    assert words in body(message(0, "assistant", "final", [part]), title="")
