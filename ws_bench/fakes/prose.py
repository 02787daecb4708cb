"""Whole sentences of prose in a passage of a document: without headings, lists, tables, code and directory trees.

The passage is markdown, or what was read from a PDF: lines that may be broken anywhere, tables as words in a row. What
is not surely a sentence is left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_NOT_PROSE: Final = re.compile(r"#{1,6}\s|[|>]|<[!/a-zA-Z]|[-=*_]{3,}$|\[[^\]\n]{1,80}\]:\s")
"""How a heading, a row of a table, a quotation, a tag, a rule and the target of a link begin."""
_ITEM: Final = re.compile(r"(?:[-*+\u2022\u2013]|\(?\d{1,3}[.)])\s")
_COLUMNS: Final = re.compile(r"\S {3,}\S|[│├└─┌┐]")
_FENCES: Final = ("```", "~~~")
_CODE_INDENT: Final = ("    ", "\t")
_END: Final = re.compile(r"[.!?…][)\"'\]\u2019\u201d\u00bb*_`]{0,4}(?=\s|$)")
_SHORT_FORM: Final = re.compile(
    r"(?:\b(?:e\.g|i\.e|z\.\s?B|d\.\s?h|u\.\s?a|usw|bzw|ca|etc|vs|cf|approx|Dr|Mr|Mrs|Nr|No|Fig|St)|\b[A-Z])\.$"
)
_LINK: Final = re.compile(r"!?\[([^\[\]\n]{1,200})\]\([^()\s]{1,400}\)")
_INLINE_CODE: Final = re.compile(r"`[^`]*`")
_SYMBOLS: Final = re.compile(r"[<>{}|=\\\u00ad]|(?:^|\s)--\w")
"""What outside of code marks says that it is code after all, or (a soft hyphen) that a line was broken in a word."""
_OPENING: Final = "*_\"'(\u201c\u2018\u201e\u00ab[` "
_CLOSING: Final = ")\"'\u2019\u201d\u00bb*_`"
_LEAST_WORDS, _MOST_CHARS, _LEAST_LETTERS = 3, 400, 0.6
_RUN_IN_CHARS: Final = 60
_BROKEN_WORD: Final = "\u00ad"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence as it may be shown; `paragraph` and `place` say where in the passage it stands."""

    text: str
    paragraph: int
    place: int


def sentences_in(passage: str) -> list[Sentence]:
    """The whole sentences of the passage in their order. Links are their words, bold is plain, lines are joined."""
    return [
        Sentence(whole, number, place)
        for number, paragraph in enumerate(_paragraphs(passage))
        for place, raw in enumerate(_divided(paragraph))
        if (whole := _whole(raw, begins=place == 0))
    ]


def _paragraphs(passage: str) -> Iterator[str]:
    """Runs of lines that may be prose, each on one line."""
    lines: list[str] = []
    fenced = listed = False
    for line in [*passage.splitlines(), ""]:
        text = line.strip()
        if text.startswith(_FENCES):
            fenced = not fenced
        # What follows an item without an empty line belongs to it.
        listed = bool(_ITEM.match(text)) or (listed and bool(text))
        code = fenced or text.startswith(_FENCES) or (line.startswith(_CODE_INDENT) and not lines)
        if text and not (code or listed or _NOT_PROSE.match(text) or _COLUMNS.search(text)):
            lines.append(text)
        elif lines:
            # A word that was divided at the end of its line is not put together: nobody knows how.
            marked = [f"{line}{_BROKEN_WORD}" if line.endswith("-") else line for line in lines[:-1]]
            yield " ".join([*marked, lines[-1]])
            lines = []


def _divided(paragraph: str) -> Iterator[str]:
    """Its sentences, and what is left at its end."""
    begin = 0
    for end in _END.finditer(paragraph):
        rest = paragraph[end.end() : end.end() + 8].lstrip()
        if rest[:1].islower() or _SHORT_FORM.search(paragraph, max(begin, end.start() - 8), end.start() + 1):
            continue
        yield paragraph[begin : end.end()].strip()
        begin = end.end()
    yield paragraph[begin:].strip()


def _whole(raw: str, *, begins: bool) -> str:
    """The sentence as it may be shown, empty where it is none: a fragment, a label, or code without its marks."""
    if begins and raw.startswith("**") and raw.endswith("**") and len(raw) <= _RUN_IN_CHARS:
        return ""
    text = _LINK.sub(r"\1", raw).replace("**", "").replace("__", "").strip()
    if not (_END.search(text, max(len(text) - 5, 0)) and text.rstrip(_CLOSING).endswith((".", "!", "…"))):
        return ""
    first = text.lstrip(_OPENING)[:1]
    if not (first.isupper() or first.isdigit() or text.startswith("`")) or not _balanced(text):
        return ""
    plain = _INLINE_CODE.sub("", text)
    letters = sum(character.isalpha() or character == " " for character in text)
    fits = len(text) <= _MOST_CHARS and len(plain.split()) >= _LEAST_WORDS and letters >= _LEAST_LETTERS * len(text)
    return text if fits and not _SYMBOLS.search(plain) else ""


def _balanced(text: str) -> bool:
    return text.count("`") % 2 == 0 and text.count('"') % 2 == 0 and text.count("(") == text.count(")")
