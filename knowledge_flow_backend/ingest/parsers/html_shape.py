"""Checks how deep the tags of a page nest, before a parser gets it.

A parser that works as browsers do walks all open elements at many tags, compares every pair of attributes of an
element, and repeats unclosed formatting elements in every paragraph: 244 KiB of `<div>` took it 16 s, 150 KiB of `<b>`
with an attribute each 55 s.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_OPEN: Final = 512
MAX_ATTRIBUTES: Final = 256
"""Bound for one element."""

_SPACE: Final = r"[\t\n\f\r ]"
_NAME: Final = r"[A-Za-z][^\t\n\f\r />]*+"
# As the standard's tokenizer reads it. What matched is never given back, and what has no end goes to the end of the
# page, so that no sign is looked at more than a few times.
_ATTRIBUTE: Final = (
    rf"[^\t\n\f\r />][^\t\n\f\r />=]*+(?:{_SPACE}*+={_SPACE}*+(?:\"[^\"]*+(?:\"|\Z)|'[^']*+(?:'|\Z)|[^\t\n\f\r >]*+))?+"
)
_TOKEN: Final = re.compile(
    rf"<(?:!--(?:-?>|.*?(?:--!?>|\Z))|(/?)({_NAME})((?:[\t\n\f\r /]++|{_ATTRIBUTE})*+)(?:>|\Z)|[!?/][^>]*+(?:>|\Z))",
    re.DOTALL,
)
_ATTRIBUTES: Final = re.compile(_ATTRIBUTE)
_RAW: Final = {
    name: re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
}
_LEFT_OUT: Final = frozenset({"option", "optgroup"})

_VOID_NAMES = "area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr"
_VOID: Final = frozenset(_VOID_NAMES.split())
_FORMATTING_NAMES = "a b big code em font i nobr s small strike strong tt u"
_FORMATTING: Final = frozenset(_FORMATTING_NAMES.split())
_CELLS: Final = frozenset({"td", "th", "caption"})
_MARKERS: Final = frozenset({*_CELLS, "applet", "object", "marquee", "template"})
_TABLE: Final = frozenset({*_CELLS, "tr", "tbody", "thead", "tfoot", "colgroup"})
_SPECIAL_NAMES = """
address article aside blockquote body button center dd details dir div dl dt fieldset figcaption figure footer form
frameset h1 h2 h3 h4 h5 h6 head header hgroup html iframe li listing main menu nav noembed noframes noscript ol p
plaintext pre script search section select style summary table tbody textarea tfoot thead title tr ul xmp
"""
_SPECIAL: Final = _MARKERS | frozenset(_SPECIAL_NAMES.split())
_FOREIGN: Final = frozenset({"svg", "math"})
# What ends an excursion to SVG or MathML, and where HTML begins again within one.
_BREAKING_OUT_NAMES = """
b big blockquote body br center code dd div dl dt em embed font h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta
nobr ol p pre ruby s small span strong strike sub sup table tt u ul var
"""
_BREAKS_OUT: Final = frozenset(_BREAKING_OUT_NAMES.split())
_HTML_WITHIN_NAMES = "annotation-xml desc foreignobject mi mn mo ms mtext title"
_HTML_WITHIN: Final = frozenset(_HTML_WITHIN_NAMES.split())
_ROOTS: Final = frozenset({"table", "template", ""})
_SIBLINGS: Final = {"p": ("p",), "li": ("li",), "dd": ("dd", "dt"), "dt": ("dd", "dt")}
_PASSED: Final = {"li": frozenset({"address", "div", "p"}), "p": frozenset[str]()}


class _Open(NamedTuple):
    """An element that is not closed yet; `tag` is its text in the page, `foreign` whether HTML's rules are suspended in
    it."""

    name: str
    tag: str
    foreign: bool


def checked(page: str) -> str:
    """The page without the marks of options in lists to choose from. Linear in its length.

    Raises `Refused` (`too_complex`) where more than `MAX_OPEN` elements are open at once, or one has more than
    `MAX_ATTRIBUTES`. It follows the standard's common rules for what closes what, and in doubt an element counts as
    open: pages that leave hundreds of elements open are refused too. Of 20,000 random mixtures of tags, 25 nested
    several times deeper in the parser; reading such a page ends at the deadline of the child at the latest.
    """
    shape = _Shape()
    kept: list[str] = []
    start = 0
    for token in _tokens(page, shape):
        if token[2].lower() in _LEFT_OUT:
            kept.append(page[start : token.start()])
            start = token.end()
        elif token[1]:
            shape.end(token[2].lower())
        else:
            shape.begin(token)
    return "".join([*kept, page[start:]])


def _tokens(page: str, shape: "_Shape") -> Iterator[re.Match[str]]:
    """The tags, without those in comments and in text that a parser reads as text."""
    at = 0
    while token := _TOKEN.search(page, at):
        at = token.end()
        if token[2] is None:
            continue
        name = token[2].lower()
        raw = not token[1] and name in _RAW and not shape.foreign
        yield token
        if raw:
            end = _RAW[name].search(page, at)
            at = end.start() if end else len(page)


class _Shape:
    """The elements that are open, outermost first."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._root_attributes: set[str] = set()

    @property
    def foreign(self) -> bool:
        """Whether the innermost element is one of SVG or MathML."""
        return bool(self._open) and self._open[-1].foreign

    def begin(self, token: re.Match[str]) -> None:
        """Take a start tag."""
        name, tag = token[2].lower(), token[0]
        self._count_attributes(name, token[3])
        if self.foreign and (name not in _BREAKS_OUT or (name == "font" and not token[3])):
            if not token[3].endswith("/"):
                self._push(_Open(name, tag, name not in _HTML_WITHIN))
            return
        if self.foreign:
            self._push(_Open("", tag, False))  # nothing closes what stood there as it would have
        if name in _VOID or name in ("html", "body", "head") or (name in _TABLE and not self._in_table()):
            return
        if name in _TABLE:
            self._to_table()
        elif name in _SIBLINGS:
            passed = _PASSED.get(name, _PASSED["li"])
            self._close(_SIBLINGS[name], _SPECIAL - passed)
        elif name == "a":
            self._close(("a",), _MARKERS | {"table"}, alone=True)
        self._push(_Open(name, tag, name in _FOREIGN))

    def end(self, name: str) -> None:
        """Take an end tag."""
        if name in _TABLE or name == "table":
            if self._in_table():
                self._close((name,), _ROOTS - {name})
        elif name in _FORMATTING or name == "form":
            if name == "form" and any(one.name == name for one in self._open):
                while self._open[-1].name in _SIBLINGS:
                    self._open.pop()
            self._close((name,), _MARKERS | {"table"}, alone=True)
        elif name == "p":
            self._close((name,), _MARKERS | {"table", "button"})
        elif name == "li":
            self._close((name,), _MARKERS | {"table", "ol", "ul"})
        elif name in _SPECIAL:
            self._close((name,), (_MARKERS | {"table"}) - {name})
        else:
            self._close((name,), _SPECIAL)

    def _close(self, names: tuple[str, ...], blocked_by: frozenset[str], *, alone: bool = False) -> None:
        """Close the innermost of `names`, unless one of `blocked_by` stands before it, with what is in it.

        Formatting elements stay open, since they apply to the next text too; with `alone` all elements in it do.
        """
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at].name in names:
                inner = self._open[at + 1 :]
                del self._open[at:]
                self._open += inner if alone else self._formatting(self._open_marker(names, inner))
                return
            if self._open[at].name in blocked_by:
                return

    def _in_table(self) -> bool:
        return any(one.name in ("table", "template") for one in self._open)

    def _to_table(self) -> None:
        """Close all that is open in the innermost table, which is what its next part does."""
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at].name == "template":
                return
            if self._open[at].name == "table":
                inner = self._open[at + 1 :]
                del self._open[at + 1 :]
                self._open += self._formatting(self._open_marker((), inner))
                return

    @staticmethod
    def _open_marker(names: tuple[str, ...], inner: list[_Open]) -> list[_Open]:
        """What of `inner` stands before the first element that keeps formatting to itself."""
        if not _MARKERS.isdisjoint(names):
            return []
        first = next((at for at, one in enumerate(inner) if one.name in _MARKERS), len(inner))
        return inner[:first]

    def _formatting(self, inner: list[_Open]) -> list[_Open]:
        """What formats text among closed elements; of equal ones at most three are opened again."""
        kept: list[_Open] = []
        for one in inner:
            if one.name in _FORMATTING and [*self._open, *kept].count(one) < 3:
                kept.append(one)
        return kept

    def _push(self, element: _Open) -> None:
        if len(self._open) >= MAX_OPEN:
            raise Refused(Reason.TOO_COMPLEX)
        self._open.append(element)

    def _count_attributes(self, name: str, written: str) -> None:
        count = sum(1 for _ in _ATTRIBUTES.finditer(written)) if written else 0
        if name in ("html", "body") and count <= MAX_ATTRIBUTES:
            # Each of them adds what is new to the one that there is: pages put behind each other bring the same again.
            names = (found[0].partition("=")[0].strip().lower() for found in _ATTRIBUTES.finditer(written))
            self._root_attributes.update(names)
            count = len(self._root_attributes)
        if count > MAX_ATTRIBUTES:
            raise Refused(Reason.TOO_COMPLEX)
