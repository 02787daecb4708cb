"""What a child writes for a file of every format: a passage is what its offsets say, in the text that is kept."""

import io
import json
import string
from collections.abc import Callable
from pathlib import Path

import docx
import openpyxl
import pptx
import pytest

from knowledge_flow_backend.ingest.work import PARSERS, Job, run
from tests.knowledge_flow_backend.ingest import files, office

# Letters of several code units, composed while they are read; an ending that becomes one; what is not seen.
WORDS = "Zoe\u0301 \U0001f9ed turns\u00ad the wheel,\r\nonce\ufeff more. "
ROWS = [["key", "value"], *([f"k{number}", f"{WORDS}|{number}"] for number in range(40))]


def word() -> bytes:
    document = docx.Document()
    document.add_heading("Zoe\u0301's wheel", 1)
    document.add_paragraph(WORDS * 20)
    table = document.add_table(0, 2)
    for row in ROWS:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "within"
    document.add_paragraph(WORDS)
    return saved(document)


def slides() -> bytes:
    presentation = pptx.Presentation(io.BytesIO(office.slides()))
    presentation.slides[0].placeholders[1].text_frame.text = WORDS * 20
    return saved(presentation)


def workbook() -> bytes:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in ROWS:
        book.active.append(row)
    book.active.merge_cells("C1:D2")
    return saved(book)


def saved(document: object) -> bytes:
    made = io.BytesIO()
    document.save(made)  # type: ignore[attr-defined]
    return made.getvalue()


MAKERS: dict[str, Callable[[], bytes]] = {
    "markdown": f"---\ntitle: T\n---\n# Zoe\u0301\n\n{WORDS * 20}\n\n{files.MARKDOWN}".encode,
    "text": lambda: (f"{WORDS * 20}\r\n\r\n" * 3).encode("utf-16"),
    "html": f"<h1>Zoe\u0301</h1><p>{WORDS * 20}</p>{files.HTML}".encode,
    "pdf": lambda: files.pdf([["One.", "Two."], ["Three."]]),
    "csv": lambda: "\n".join(f'{key},"{value}"' for key, value in ROWS).encode(),
    "jsonl": lambda: "\n".join(json.dumps({"key": key, "value": value * 20}) for key, value in ROWS).encode(),
    "docx": word,
    "pptx": slides,
    "xlsx": workbook,
}


@pytest.mark.parametrize("kind", PARSERS)
def test_offsets_open_the_very_passage(kind: str, tmp_path: Path) -> None:
    raw, content, chunks = (tmp_path / name for name in ("raw", "content", "chunks"))
    raw.write_bytes(MAKERS[kind]())
    outline = run(Job(str(raw), kind, f"a.{kind}", str(content), str(chunks), 400, 40))
    kept = content.read_bytes().decode()
    found = [chunk for line in chunks.read_bytes().splitlines() for chunk in json.loads(line)]
    assert (outline["chars"], outline["chunks"]) == (len(kept), len(found))
    assert [text for *_, text in found] == [kept[start:end] for _, start, end, *_ in found]
    assert [ordinal for ordinal, *_ in found] == list(range(len(found)))
    if kind != "pdf":
        assert len(found) > 2
        assert "Zo\u00e9 \U0001f9ed turns the wheel," in found[1][-1].translate({ord(sign): " " for sign in "\n"})
        assert not set(kept) - set(string.printable) - set("\u00e9\U0001f9ed\u2026\u2019")
