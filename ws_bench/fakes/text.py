"""How the fake model reads a text: its words, roughly stemmed, and its whole sentences.

A passage is markdown, or text extracted from a PDF: its lines may break anywhere, its tables are words in a row.
Headings, lists, tables, code and directory trees are left out, and so is anything that is not certainly a sentence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
    a about after again all also am an and any are as at be been before being but by can could did do does doing done
    each every for from get give had has have he her here him his how i if in into is it its just let make many may me
    more most much my no nor not now of off on only or other our out over please she should show so some such tell than
    that the their them then there these they this those to too under up us use used very was we were what when where
    which while who whom whose why will with would you your
    aber als am an auch auf aus bei bin bis das dass dem den der des die dir du durch ein eine einem einen einer eines
    er es für hat ich im in ist mir mit nach nicht noch nur oder sein sich sie sind so um und uns vom von vor wann war
    was weil wenn wer werden wie wird wo zu zum zur über
    au ce cette comme dans de du elle en est et il ils je la le les leur mais nous ou où par pas pour qu que quel quelle
    qui sa se ses son sur un une vous
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
# Longest first; what is left must still be four letters long.
_ENDINGS: Final = (
    "ations", "ungen", "ences", "ation", "ments", "ence", "ings", "ions", "ment", "ance", "ung", "ing", "ion", "ers",
    "ies", "ed", "er", "es", "en", "em", "ly", "e", "s", "n", "y",
)  # fmt: skip
_LEAST_STEM: Final = 4
_NOT_PROSE: Final = re.compile(r"#{1,6}\s|[|>]|<[!/a-zA-Z]|[-=*_]{3,}$|\[[^\]\n]{1,80}\]:\s")
"""Beginnings of headings, table rows, quotations, tags, rules and link targets."""
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
"""Outside of code marks: characters of code, or a soft hyphen where a line was broken inside a word."""
_OPENING: Final = "*_\"'(\u201c\u2018\u201e\u00ab[` "
_CLOSING: Final = ")\"'\u2019\u201d\u00bb*_`"
_LEAST_WORDS, _MOST_CHARS, _LEAST_LETTERS = 3, 400, 0.6
_RUN_IN_CHARS: Final = 60
_BROKEN_WORD: Final = "\u00ad"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence ready to be shown; `paragraph` and `place` are its position in the passage."""

    text: str
    paragraph: int
    place: int


def words(text: str) -> list[str]:
    """The words of a text in lower case and in order, common ones included."""
    return _WORD.findall(text.lower())


def terms(text: str) -> set[str]:
    """The words of a text without common ones, stemmed so that `persist`, `persisted` and `persistence` are equal. For
    German only endings are removed."""
    return {_stem(word) for word in _WORD.findall(text.lower()) if word not in _COMMON}


def sentences_in(passage: str) -> list[Sentence]:
    """The whole sentences of the passage in order, links and bold as plain text, lines joined."""
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
        # Lines that follow an item without an empty line belong to it.
        listed = bool(_ITEM.match(text)) or (listed and bool(text))
        code = fenced or text.startswith(_FENCES) or (line.startswith(_CODE_INDENT) and not lines)
        if text and not (code or listed or _NOT_PROSE.match(text) or _COLUMNS.search(text)):
            lines.append(text)
        elif lines:
            # A word divided at the end of a line cannot be joined safely: its sentence is marked as broken.
            marked = [f"{line}{_BROKEN_WORD}" if line.endswith("-") else line for line in lines[:-1]]
            yield " ".join([*marked, lines[-1]])
            lines = []


def _divided(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph, and the rest at its end."""
    begin = 0
    for end in _END.finditer(paragraph):
        rest = paragraph[end.end() : end.end() + 8].lstrip()
        if rest[:1].islower() or _SHORT_FORM.search(paragraph, max(begin, end.start() - 8), end.start() + 1):
            continue
        yield paragraph[begin : end.end()].strip()
        begin = end.end()
    yield paragraph[begin:].strip()


def _whole(raw: str, *, begins: bool) -> str:
    """The sentence ready to be shown; empty for a fragment, a label or code without its marks."""
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


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if len(word) - len(ending) >= _LEAST_STEM and word.endswith(ending):
            return word[: -len(ending)]
    return word
