"""Reads the manual's index: what its entries say, and where each one's links lead."""

from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser, LexborNode


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the index. `below` is "" for a main entry, else what stands beneath it; targets are `page#id`."""

    main: str
    below: str
    targets: tuple[str, ...]


def entries(index: str) -> Iterator[Entry]:
    """The lines that link to something, in their order. Lines that only point to another line have no targets."""
    for table in LexborHTMLParser(index).css("table.indextable"):
        for line in table.css("td > ul > li"):
            main = _label(line)
            targets = _targets(line)
            if targets:
                yield Entry(main, "", targets)
            for inner in line.css("ul > li"):
                if inner.mem_id != line.mem_id and _targets(inner):
                    yield Entry(main, _label(inner), _targets(inner))


def _label(line: LexborNode) -> str:
    """The line's words: those of its first link, or the plain text before the lines beneath it."""
    for node in line.iter(include_text=True):
        text = " ".join((node.text() or "").split())
        if node.tag == "a" or (node.tag == "-text" and text):
            return text
    return ""


def _targets(line: LexborNode) -> tuple[str, ...]:
    links = [node.attributes.get("href") or "" for node in line.iter() if node.tag == "a"]
    return tuple(dict.fromkeys(link for link in links if "#" in link))
