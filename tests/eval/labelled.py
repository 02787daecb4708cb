"""Makes the labelled set: the manual's index entries as queries, the places that they link to as answers."""

from collections import defaultdict
from collections.abc import Sequence

from tests.eval.genindex import Entry, entries
from tests.eval.manual import Manual, Page
from tests.eval.passages import Passage, passages
from tests.eval.queries import Query, queries


def labelled(manual: Manual, pages: Sequence[Page]) -> list[Query]:
    """Every query that these pages answer."""
    lines = list(entries(manual.index()))
    return queries(lines, _places(lines, pages))


def _places(lines: Sequence[Entry], pages: Sequence[Page]) -> dict[str, Passage]:
    """The passage of each link that leads to one of these pages."""
    anchors: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for target in line.targets:
            path, _, anchor = target.partition("#")
            anchors[path].add(anchor)
    found: dict[str, Passage] = {}
    for page in pages:
        asked = anchors[page.path]
        for anchor, passage in passages(page.path, page.data, asked).items() if asked else ():
            found[f"{page.path}#{anchor}"] = passage
    return found
