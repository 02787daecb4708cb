"""Office files, made with the libraries that also read them, and archives that no program would write."""

import io
import zipfile
from collections.abc import Mapping

import docx
import openpyxl
import pptx
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from pptx.util import Inches

DOCX_TABLE = [["key", "value"], ["ack", "a|b"]]


def word() -> bytes:
    """Title, headings, lists, a table, a change, hidden text and a content control."""
    document = docx.Document()
    document.add_heading("Turning the wheel", 0)
    document.add_paragraph("An intro of one sentence.")
    document.add_heading("Persist a turn", 1)
    document.add_paragraph("The finished turn is appended to a spool.")
    document.add_paragraph("one", style="List Bullet")
    document.add_paragraph("inner", style="List Bullet 2")
    document.add_paragraph("two", style="List Bullet")
    document.add_paragraph("first", style="List Number")
    document.add_paragraph("second", style="List Number")
    table = document.add_table(2, 2)
    for row, cells in zip(table.rows, DOCX_TABLE, strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    document.add_heading("Deeper", 2)
    changed = document.add_paragraph("Kept ")
    changed._p.append(parse_xml(f"<w:ins {nsdecls('w')}><w:r><w:t>added </w:t></w:r></w:ins>"))
    changed._p.append(parse_xml(f"<w:del {nsdecls('w')}><w:r><w:delText>removed</w:delText></w:r></w:del>"))
    hidden = changed.add_run("unseen")
    hidden.font.hidden = True
    document.element.body.insert(
        len(document.element.body) - 1,
        parse_xml(
            f"<w:sdt {nsdecls('w')}><w:sdtContent><w:p><w:r><w:t>Controlled.</w:t></w:r></w:p></w:sdtContent></w:sdt>"
        ),
    )
    return _saved(document)


def slides() -> bytes:
    """Two slides: a list with notes, a table; and one without any title."""
    presentation = pptx.Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "The wheel"
    body = first.placeholders[1].text_frame
    body.text = "It turns"
    below = body.add_paragraph()
    below.text, below.level = "by itself", 1
    first.notes_slide.notes_text_frame.text = "Say it slowly."
    second = presentation.slides.add_slide(presentation.slide_layouts[5])
    second.shapes.title.text = "Figures"
    table = second.shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for row, cells in enumerate([["key", "value"], ["ack", "spool"]]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    third = presentation.slides.add_slide(presentation.slide_layouts[6])
    third.shapes.add_textbox(Inches(1), Inches(1), Inches(3), Inches(1)).text_frame.text = "Loose text."
    return _saved(presentation)


def workbook(rows: int = 0) -> bytes:
    """Two sheets and a hidden one; `rows` makes the second one longer."""
    book = openpyxl.Workbook()
    first = book.active
    assert first is not None
    first.title = "People"
    first.append(["name", "born", "share"])
    first.append(["Ada", "=DATE(1815,12,10)", 0.5])
    first.append(["Alan", None, 2.0])
    first["B6"] = "Alone in its place"
    second = book.create_sheet("Figures")
    second.append(["number", "square"])
    for number in range(max(rows, 2)):
        second.append([number, number * number])
    hidden = book.create_sheet("Secrets")
    hidden.append(["unseen", "unseen"])
    hidden.sheet_state = "hidden"
    return _saved(book)


def repacked(data: bytes, changes: Mapping[str, bytes]) -> bytes:
    """The archive with some of its parts replaced or added."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name not in changes:
                new.writestr(name, old.read(name))
        for name, part in changes.items():
            new.writestr(name, part)
    return made.getvalue()


def encrypted() -> bytes:
    """What a password makes of any of them: the head of another container that names its one stream."""
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + "EncryptedPackage".encode("utf-16-le") + bytes(512)


def _saved(document: object) -> bytes:
    made = io.BytesIO()
    document.save(made)  # type: ignore[attr-defined]
    return made.getvalue()
