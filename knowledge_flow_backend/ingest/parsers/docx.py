"""Word documents: paragraphs, lists and tables in order, under the headings that their styles make."""

import io
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import docx
from docx.document import Document
from docx.exceptions import PythonDocxError
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.exceptions import OpcError
from docx.oxml.ns import qn

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean
from knowledge_flow_backend.ingest.parsers.packages import check
from knowledge_flow_backend.ingest.tables import table
from knowledge_flow_backend.library.reasons import Reason, Refused

_HEADING = re.compile(r"heading ([1-9])")
_LIST = re.compile(r"list (bullet|number)(?: ([2-9]))?")
_LEVELS = 6
_BODY_LEVEL = 9
"""The outline level that means none."""
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
# Deleted and moved text, formatting, and the fallback copy of what older programs cannot draw.
_UNREAD = frozenset({qn("w:del"), qn("w:moveFrom"), qn("w:pPr"), qn("w:rPr"), f"{_MC}Fallback"})
_TEXT = frozenset({qn("w:t"), f"{_MATH}t"})
_SIGNS = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:p"): "\n", qn("w:noBreakHyphen"): "-"}
# What stands around paragraphs without being one: content controls, and marks of what a program put there.
_AROUND = frozenset({qn("w:sdt"), qn("w:sdtContent"), qn("w:customXml"), qn("w:smartTag"), qn("w:ins"), qn("w:moveTo")})


def parse(data: bytes) -> Parsed:
    """Parse one file. Raises `Refused`."""
    check(data, "word/")
    try:
        document = docx.Document(io.BytesIO(data))
        body = _Body(_Styles(document))
        body.read(document.element.body)
        body.end_list()
        title = body.title or clean(document.core_properties.title or "").strip()
    except (PythonDocxError, OpcError):
        raise Refused(Reason.UNREADABLE) from None
    return body.writer.parsed(title or body.first_heading)


class _Styles:
    """What the styles of paragraphs say, each looked up once."""

    def __init__(self, document: Document) -> None:
        self._styles = {style.get(qn("w:styleId")): style for style in document.styles.element.iter(qn("w:style"))}
        self._names: dict[str, str] = {}
        self._formats = _list_formats(document)

    def names(self, style_id: str | None) -> list[str]:
        """The names of a style and of those that it is based on, in small letters."""
        found: list[str] = []
        while style_id is not None and (style := self._styles.get(style_id)) is not None and len(found) < _BODY_LEVEL:
            found.append((_value(style, "w:name") or "").lower())
            style_id = _value(style, "w:basedOn")
        return found

    def level(self, paragraph: Any) -> int:
        """Of a heading, from 1; 0 for a title, -1 for what is neither."""
        properties = paragraph.find(qn("w:pPr"))
        names = self.names(_value(properties, "w:pStyle"))
        if names and names[0] == "title":
            return 0
        for name in names:
            if found := _HEADING.fullmatch(name):
                return min(int(found[1]), _LEVELS)
        outline = _value(properties, "w:outlineLvl")
        if outline is None or not outline.isdecimal() or int(outline) >= _BODY_LEVEL:
            return -1
        return min(int(outline) + 1, _LEVELS)

    def item(self, paragraph: Any) -> tuple[int, str] | None:
        """Depth and mark of an item of a list, None for another paragraph."""
        properties = paragraph.find(qn("w:pPr"))
        numbering = properties.find(qn("w:numPr")) if properties is not None else None
        if numbering is not None:
            depth = _value(numbering, "w:ilvl") or "0"
            kind = self._formats.get((_value(numbering, "w:numId"), depth))
            if kind is not None:
                return min(int(depth), _LEVELS) if depth.isdecimal() else 0, "-" if kind == "bullet" else "1."
        for name in self.names(_value(properties, "w:pStyle")):
            if found := _LIST.fullmatch(name):
                return int(found[2] or 1) - 1, "-" if found[1] == "bullet" else "1."
        return None


def _list_formats(document: Document) -> dict[tuple[str | None, str], str]:
    """How items of (list, depth) are marked: `bullet`, `decimal`…; a list that marks nothing is left out."""
    try:
        part: Any = document.part.part_related_by(RELATIONSHIP_TYPE.NUMBERING)
    except KeyError:
        return {}
    abstract = {
        one.get(qn("w:abstractNumId")): {
            level.get(qn("w:ilvl")): _value(level, "w:numFmt") for level in one.iter(qn("w:lvl"))
        }
        for one in part.element.iter(qn("w:abstractNum"))
    }
    return {
        (one.get(qn("w:numId")), depth): kind
        for one in part.element.iter(qn("w:num"))
        for depth, kind in abstract.get(_value(one, "w:abstractNumId"), {}).items()
        if kind not in (None, "none")
    }


class _Body:
    """Walks the elements; items of a list that follow one another are one block."""

    def __init__(self, styles: _Styles) -> None:
        self.writer = Writer()
        self.title = self.first_heading = ""
        self._styles = styles
        self._items: list[str] = []
        self._counts: dict[tuple[int, str], int] = {}

    def read(self, parent: Any) -> None:
        """Read the blocks below an element."""
        for node in parent.iterchildren():
            if node.tag == qn("w:p"):
                self._paragraph(node)
            elif node.tag == qn("w:tbl"):
                self.end_list()
                self._table(node)
            elif node.tag in _AROUND:
                self.read(node)

    def end_list(self) -> None:
        """Write the items gathered so far."""
        self.writer.add(Kind.PROSE, "\n".join(self._items))
        self._items.clear()
        self._counts.clear()

    def _paragraph(self, paragraph: Any) -> None:
        text = _plain(paragraph)
        if not text:
            return
        level = self._styles.level(paragraph)
        if level >= 0:
            self.end_list()
            self._heading(level, " ".join(text.split()))
        elif (item := self._styles.item(paragraph)) is not None:
            self._item(*item, " ".join(text.split()))
        else:
            self.end_list()
            self.writer.add(Kind.PROSE, text)

    def _heading(self, level: int, text: str) -> None:
        if level == 0:
            self.title = self.title or text
        elif level == 1:
            self.first_heading = self.first_heading or text
        self.writer.heading(max(level, 1), text)

    def _item(self, depth: int, mark: str, text: str) -> None:
        # A list of another kind, or a deeper one, restarts once this one has continued.
        self._counts = {key: count for key, count in self._counts.items() if key[0] < depth or key == (depth, mark)}
        self._counts[depth, mark] = self._counts.get((depth, mark), 0) + 1
        shown = mark if mark == "-" else f"{self._counts[depth, mark]}."
        self._items.append(f"{'  ' * depth}{shown} {text}")

    def _table(self, node: Any) -> None:
        rows = [row for row in node.iter(qn("w:tr")) if _table_of(row) is node]
        if len(rows) == 1 and (only := _only_cell(rows[0])) is not None:  # a frame around text
            # Its text is not read before: of frames within frames the innermost would be read once for each.
            self.read(only)
            return
        self.writer.add(Kind.TABLE, table([_cells(row) for row in rows]))


def _table_of(row: Any) -> Any:
    return next(row.iterancestors(qn("w:tbl")), None)


def _cells_of(row: Any) -> Iterator[Any]:
    return (cell for cell in row.iter(qn("w:tc")) if next(cell.iterancestors(qn("w:tr")), None) is row)


def _only_cell(row: Any) -> Any:
    """The cell of a row that has no other, and is one column wide; else None."""
    cells = list(islice(_cells_of(row), 2))
    return cells[0] if len(cells) == 1 and _columns(cells[0]) == 1 else None


def _columns(cell: Any) -> int:
    wide = _value(cell.find(qn("w:tcPr")), "w:gridSpan") or "1"
    return min(max(int(wide), 1), 64) if wide.isdecimal() else 1


def _cells(row: Any) -> list[str]:
    """The texts of a row's cells; one that is several columns wide is followed by empty ones."""
    cells: list[str] = []
    for cell in _cells_of(row):
        cells.append(_plain(cell))
        cells.extend([""] * (_columns(cell) - 1))
    return cells


def _plain(node: Any) -> str:
    """The text below an element as it is read: changes accepted, hidden text left out, blank lines dropped."""
    lines = clean("".join(_texts(node))).split("\n")
    return "\n".join(text for line in lines if (text := " ".join(line.split())))


def _texts(node: Any) -> Iterator[str]:
    for child in node.iterchildren():
        if child.tag in _TEXT:
            yield child.text or ""
        elif child.tag in _UNREAD or (child.tag == qn("w:r") and _is_hidden(child)):
            continue
        else:
            yield _SIGNS.get(child.tag, "")
            yield from _texts(child)


def _is_hidden(run: Any) -> bool:
    properties = run.find(qn("w:rPr"))
    mark = properties.find(qn("w:vanish")) if properties is not None else None
    return mark is not None and mark.get(qn("w:val")) not in ("0", "false", "off")


def _value(node: Any, name: str) -> str | None:
    """The value of a child element."""
    child = node.find(qn(name)) if node is not None else None
    value = child.get(qn("w:val")) if child is not None else None
    return None if value is None else str(value)
