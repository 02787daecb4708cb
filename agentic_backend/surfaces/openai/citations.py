"""An answer's citations as OpenAI's annotations, each with an address that opens the passage on our page."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentic_backend.agent.sources import marks
from agentic_backend.events import Part

Citation = dict[str, Any]
"""`start_index`, `end_index` (of the mark in the answer's text, in characters), `title`, `url`."""


def citations_of(parts: Sequence[Part], text: str, page: str, offset: int = 0) -> list[Citation]:
    """One for each source that an answer cites, in their order.

    `page` is the origin at which people open the page, `offset` how many characters were sent before the text. A source
    whose mark is not found in the text stands at its end.
    """
    links = [part for part in parts if part.get("type") == "link" and part.get("kind") == "citation"]
    if not links:
        return []
    places = marks(text, max(_number(link) for link in links))
    end = len(text)
    found = []
    for link in links:
        start, stop = places.get(_number(link), (end, end))
        href = str(link.get("href", ""))
        url = page + href if href.startswith("/") else href
        title = str(link.get("title") or url)
        found.append({"start_index": start + offset, "end_index": stop + offset, "title": title, "url": url})
    return found


def page_of(public_url: str | None, scheme: str, headers: Mapping[str, str]) -> str:
    """The origin for the addresses of passages: as configured, else the one that the request was sent to."""
    return (public_url or f"{scheme}://{headers.get('host', 'localhost')}").rstrip("/")


def _number(link: Part) -> int:
    number = str(link.get("source_id", ""))
    return int(number) if number.isdecimal() and len(number) <= 3 else 0
