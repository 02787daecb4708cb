"""Messages and their encodings."""

from agentic_backend.events import ChatMessage, text_part


def test_a_decoded_message_is_the_one_that_was_encoded() -> None:
    made = ChatMessage.build(
        session_id="s",
        exchange_id="x",
        rank=3,
        role="assistant",
        channel="final",
        parts=[text_part("Hello"), {"type": "link", "href": "https://example.org"}, text_part("again")],
        metadata={"agent_id": "georges", "extras": {"status": "interrupted"}},
    )
    assert ChatMessage.decode(made.json) == made
    assert made.parts[1] == {"type": "link", "href": "https://example.org"}
    assert made.text == "Hello\nagain"


def test_who_changes_the_parts_of_a_message_changes_a_copy() -> None:
    made = ChatMessage.build(
        session_id="s", exchange_id="x", rank=0, role="user", channel="final", parts=[text_part("Hello")]
    )
    made.parts.clear()
    assert made.text == "Hello"
