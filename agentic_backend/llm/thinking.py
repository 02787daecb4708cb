"""Reasoning that no field of its own sets apart from the answer: blocks in the text, and in langchain's messages."""

from typing import Any, Final, Literal

from langchain_core.messages import AIMessage

from agentic_backend.llm.chunks import REASONING

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_MAX_SPACE: Final = 64
"""Characters of white space that may stand before a block. A text that begins with more of it has none."""


class ThinkBlock:
    """Takes the `<think>…</think>` block with which some models begin off one text that comes in pieces, cut anywhere.

    Only a leading block is one: later tags are text. White space around it, and at the beginning of what is in it, goes
    with it. What is held back is what may become a tag, and no more; each piece costs its own length.
    """

    __slots__ = ("_held", "_place")

    def __init__(self) -> None:
        self._held = ""
        self._place: Literal["before", "opened", "inside", "behind", "over"] = "before"

    @property
    def over(self) -> bool:
        """Whether all that is still to come is text as it is."""
        return self._place == "over"

    def feed(self, piece: str) -> tuple[str, str]:
        """What is certain now and was not returned yet: reasoning, and text."""
        held, self._held = self._held, ""
        text, thought = held + piece, ""
        if self._place == "before":
            text = self._before(text)
        if self._place in ("opened", "inside"):
            thought, text = self._inside(text)
        if self._place == "behind" and (text := text.lstrip()):
            self._place = "over"
        return thought, text

    def end(self) -> tuple[str, str]:
        """What was held back, where nothing more will come: reasoning, and text."""
        held, self._held = self._held, ""
        was_inside, self._place = self._place == "inside", "over"
        return (held, "") if was_inside else ("", held)

    def _before(self, text: str) -> str:
        """The text, or what follows the opening tag."""
        said = text.lstrip()
        if len(text) - len(said) <= _MAX_SPACE:
            if said.startswith(_OPEN):
                self._place = "opened"
                return said[len(_OPEN) :]
            if _OPEN.startswith(said):
                self._held = text
                return ""
        self._place = "over"
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        """The reasoning, and what follows the closing tag."""
        if self._place == "opened":
            text = text.lstrip()
            if not text:
                return "", ""
            self._place = "inside"
        thought, closed, rest = text.partition(_CLOSE)
        if closed:
            self._place = "behind"
            return thought, rest
        kept = next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], ""


def take_block(message: dict[str, Any]) -> None:
    """Move the block of a whole, checked message from its content to its reasoning."""
    if content := message.get("content"):
        block = ThinkBlock()
        (thought, text), (more, rest) = block.feed(content), block.end()
        message["content"] = text + rest
        if thought or more:
            message[REASONING] = message.get(REASONING, "") + thought + more


def reasoning_in(message: AIMessage) -> str:
    """What a message of any langchain model has of the model's reasoning; empty if none."""
    said = message.additional_kwargs.get(REASONING)
    if isinstance(said, str):
        return said
    if isinstance(message.content, str):
        return ""
    blocks = message.content_blocks
    return "".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning")
