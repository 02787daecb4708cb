"""Presentations: each slide is a section and a page, with its lists, tables and the speaker's notes."""

import io
from collections.abc import Iterable
from typing import Any

import pptx
from pptx.enum.shapes import PP_PLACEHOLDER
from pptx.exc import PythonPptxError

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean
from knowledge_flow_backend.ingest.parsers.packages import check
from knowledge_flow_backend.ingest.tables import table
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_SLIDES = 5_000
_FURNITURE = frozenset({PP_PLACEHOLDER.DATE, PP_PLACEHOLDER.FOOTER, PP_PLACEHOLDER.HEADER, PP_PLACEHOLDER.SLIDE_NUMBER})
"""What stands on every slide."""
_LISTS = frozenset({PP_PLACEHOLDER.BODY, PP_PLACEHOLDER.OBJECT, PP_PLACEHOLDER.VERTICAL_BODY})
"""Placeholders whose paragraphs are drawn as items of a list."""
_NOTES = "Notes: "


def parse(data: bytes) -> Parsed:
    """Parse one file. Raises `Refused`."""
    check(data, "ppt/")
    writer = Writer()
    try:
        presentation = pptx.Presentation(io.BytesIO(data))
        slides = list(presentation.slides)
        if len(slides) > MAX_SLIDES:
            raise Refused(Reason.TOO_COMPLEX)
        titles = [_slide(writer, number, slide) for number, slide in enumerate(slides, 1)]
        title = _line(presentation.core_properties.title or "")
    except PythonPptxError:
        raise Refused(Reason.UNREADABLE) from None
    if all(block.kind is Kind.HEADING for block in writer.parsed("").blocks) and not any(titles):
        raise Refused(Reason.NO_TEXT)
    # "PowerPoint Presentation" is what the program writes where nobody named it.
    return writer.parsed(_named(title) or next(filter(None, titles), ""), len(slides))


def _named(title: str) -> str:
    return "" if title.casefold() in ("powerpoint presentation", "presentation") else title


def _slide(writer: Writer, number: int, slide: Any) -> str:
    """Write one slide; its title, "" where it has none."""
    heading = slide.shapes.title
    title = _line(heading.text_frame.text) if heading is not None else ""
    writer.heading(1, title or f"Slide {number}", number)
    _shapes(writer, number, (shape for shape in slide.shapes if heading is None or shape.shape_id != heading.shape_id))
    if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None:
        notes = "\n".join(filter(None, (_line(paragraph.text) for paragraph in frame.paragraphs)))
        if notes:
            writer.add(Kind.PROSE, f"{_NOTES}{notes}", number)
    return title


def _shapes(writer: Writer, number: int, shapes: Iterable[Any]) -> None:
    for shape in shapes:
        kind = shape.placeholder_format.type if shape.is_placeholder else None
        if kind in _FURNITURE:
            continue
        if hasattr(shape, "shapes"):  # a group
            _shapes(writer, number, shape.shapes)
        elif getattr(shape, "has_table", False):
            rows = [[_line(cell.text) for cell in row.cells] for row in shape.table.rows]
            writer.add(Kind.TABLE, table(rows), number)
        elif shape.has_text_frame:
            writer.add(Kind.PROSE, _text(shape.text_frame, items=kind in _LISTS), number)


def _text(frame: Any, *, items: bool) -> str:
    """The paragraphs of a frame, as items of a list where they are drawn so."""
    paragraphs = [(paragraph.level, text) for paragraph in frame.paragraphs if (text := _line(paragraph.text))]
    listed = (items and len(paragraphs) > 1) or any(level for level, _ in paragraphs)
    return "\n".join(f"{'  ' * level}- {text}" if listed else text for level, text in paragraphs)


def _line(text: str) -> str:
    """On one line: a break within a paragraph is a vertical tab."""
    return clean(" ".join(text.split()))
