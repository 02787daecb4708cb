"""Office files: what is read out of them, and what is refused before a library opens it."""

import io
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time
from pathlib import Path

import openpyxl
import pytest

from knowledge_flow_backend.ingest.blocks import Kind, Parsed
from knowledge_flow_backend.ingest.parsers import docx, packages, pptx, xlsx
from knowledge_flow_backend.ingest.work import Job, run
from knowledge_flow_backend.library.reasons import Reason, Refused
from tests.knowledge_flow_backend.ingest import office

PARSERS: dict[str, Callable[[bytes], Parsed]] = {"docx": docx.parse, "pptx": pptx.parse, "xlsx": xlsx.parse}
MAKERS: dict[str, Callable[[], bytes]] = {"docx": office.word, "pptx": office.slides, "xlsx": office.workbook}
MAIN = {"docx": "word/document.xml", "pptx": "ppt/slides/slide1.xml", "xlsx": "xl/worksheets/sheet1.xml"}


def refusal(parse: Callable[[bytes], Parsed], data: bytes) -> Reason:
    with pytest.raises(Refused) as refused:
        parse(data)
    return refused.value.reason


def test_a_document_is_read_in_order_under_its_headings() -> None:
    parsed = docx.parse(office.word())
    assert parsed.title == "Turning the wheel"
    assert parsed.content == (
        "# Turning the wheel\n\n"
        "An intro of one sentence.\n\n"
        "# Persist a turn\n\n"
        "The finished turn is appended to a spool.\n\n"
        "- one\n  - inner\n- two\n1. first\n2. second\n\n"
        "| key | value |\n|---|---|\n| ack | a\\|b |\n\n"
        "## Deeper\n\n"
        "Kept added\n\n"
        "Controlled."
    )
    last = parsed.blocks[-1]
    assert (last.section, last.page) == (("Persist a turn", "Deeper"), None)
    (table,) = [block for block in parsed.blocks if block.kind is Kind.TABLE]
    assert table.section == ("Persist a turn",)


def test_headings_of_own_styles_and_by_outline_level_count() -> None:
    styles = (
        b'<w:style w:type="paragraph" w:styleId="Mine"><w:name w:val="Mine"/><w:basedOn w:val="Heading2"/></w:style>'
    )
    with zipfile.ZipFile(io.BytesIO(office.word())) as archive:
        old, body = archive.read("word/styles.xml"), archive.read("word/document.xml")
    changed = body.replace(
        b"<w:sectPr",
        b'<w:p><w:pPr><w:pStyle w:val="Mine"/></w:pPr><w:r><w:t>Own</w:t></w:r></w:p>'
        b'<w:p><w:pPr><w:outlineLvl w:val="2"/></w:pPr><w:r><w:t>Outlined</w:t></w:r></w:p><w:sectPr',
        1,
    )
    parts = {"word/styles.xml": old.replace(b"</w:styles>", styles + b"</w:styles>"), "word/document.xml": changed}
    assert docx.parse(office.repacked(office.word(), parts)).content.endswith("## Own\n\n### Outlined")


def test_slides_are_sections_and_pages() -> None:
    parsed = pptx.parse(office.slides())
    assert parsed.content == (
        "# The wheel\n\n- It turns\n  - by itself\n\nNotes: Say it slowly.\n\n"
        "# Figures\n\n| key | value |\n|---|---|\n| ack | spool |\n\n"
        "# Slide 3\n\nLoose text."
    )
    assert (parsed.title, parsed.pages) == ("The wheel", 3)
    assert [(block.section, block.page) for block in parsed.blocks if block.kind is Kind.TABLE] == [(("Figures",), 2)]
    assert parsed.blocks[-1].section == ("Slide 3",)


def test_sheets_are_sections_and_runs_of_rows_tables() -> None:
    parsed = xlsx.parse(office.workbook())
    assert parsed.content == (
        "# People\n\n| name | born | share |\n|---|---|---|\n| Ada |  | 0.5 |\n| Alan |  | 2 |\n\n"
        "Alone in its place\n\n"
        "# Figures\n\n| number | square |\n|---|---|\n| 0 | 0 |\n| 1 | 1 |\n\n"
        "*Hidden sheets were left out (1).*"
    )
    assert parsed.blocks[-2].section == ("Figures",)


def test_values_are_shown_as_people_read_them() -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["kind", "value"])
    day = datetime(2026, 1, 2)  # noqa: DTZ001 - cells know no time zones
    for value in (day, day.replace(hour=3, minute=4), time(5, 6), True, 1e20, 0.1, "two\nlines"):
        sheet.append(["x", value])
    made = io.BytesIO()
    book.save(made)
    values = [line.split(" | ")[1].rstrip(" |") for line in xlsx.parse(made.getvalue()).content.split("\n")[4:]]
    assert values == [
        "2026-01-02", "2026-01-02 03:04:00", "05:06:00", "TRUE", "1e+20", "0.1", "two lines"
    ]  # fmt: skip


def test_a_huge_sheet_is_cut_and_said() -> None:
    parsed = xlsx.parse(office.workbook(rows=100), max_cells=50)
    assert "Sheet 'Figures' goes on: its first 21 rows were read." in parsed.cut
    assert parsed.content.endswith(f"*{parsed.cut}*")


def test_names_of_sheets_that_no_program_writes_stay_short() -> None:
    book = openpyxl.Workbook()
    for number in range(60):
        book.create_sheet(f"S{number}").append(["x"] * (xlsx.MAX_COLUMNS + 1))
    made = io.BytesIO()
    book.save(made)
    data = made.getvalue()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        named = re.sub(rb'(<sheet [^>]*name=")([^"]*)', rb"\1\2 " + b"long " * 20_000, archive.read("xl/workbook.xml"))
    parsed = xlsx.parse(office.repacked(data, {"xl/workbook.xml": named}))
    assert max(len(part) for block in parsed.blocks for part in block.section) <= 100
    assert parsed.cut.count("columns were read.") + int(parsed.cut.rpartition("(")[2].rstrip(").")) == 60
    assert len(parsed.cut) < 4000


def test_a_sheet_that_lies_about_its_size_costs_nothing() -> None:
    data = office.workbook()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml")
    lying = re.sub(rb'(<dimension ref=")[^"]*', rb"\1A1:XFD1048576", sheet)
    assert lying != sheet
    assert xlsx.parse(office.repacked(data, {"xl/worksheets/sheet1.xml": lying})).content == xlsx.parse(data).content


@pytest.mark.parametrize("kind", PARSERS)
def test_what_is_no_archive_is_unreadable(kind: str) -> None:
    data = MAKERS[kind]()
    for broken in (b"no archive", data[: len(data) // 2], b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)):
        assert refusal(PARSERS[kind], broken) is Reason.UNREADABLE


@pytest.mark.parametrize("kind", PARSERS)
def test_a_password_is_said_as_such(kind: str) -> None:
    assert refusal(PARSERS[kind], office.encrypted()) is Reason.ENCRYPTED


@pytest.mark.parametrize("kind", PARSERS)
def test_a_bomb_is_refused_before_it_is_unpacked(kind: str) -> None:
    bomb = office.repacked(MAKERS[kind](), {"media/image.png": bytes(200 * 1024 * 1024)})
    assert len(bomb) < 1_000_000
    assert refusal(PARSERS[kind], bomb) is Reason.UNPACKS_TOO_LARGE


def test_too_many_parts_are_refused() -> None:
    many = office.repacked(office.word(), {f"media/{number}": b"x" for number in range(packages.MAX_ENTRIES)})
    assert refusal(docx.parse, many) is Reason.UNPACKS_TOO_LARGE


def test_a_part_that_would_be_a_huge_tree_is_refused() -> None:
    # A 64th of it is noise, so that it is no bomb.
    part = (os.urandom(1024) + bytes(63 * 1024)) * (packages.MAX_TREE_BYTES // 65536) + b"x"
    assert refusal(docx.parse, office.repacked(office.word(), {"word/huge.xml": part})) is Reason.UNPACKS_TOO_LARGE
    packages.check(office.repacked(office.word(), {"media/huge.bin": part}), "word/")


def test_a_tree_of_too_many_tags_is_refused_before_it_is_made() -> None:
    # Half of it is noise, so that it is no bomb.
    tags = b"".join(b"<a%x/>" % random for random in os.urandom(packages.MAX_TREE_TAGS + 1))
    assert len(tags) < packages.MAX_TREE_BYTES
    assert refusal(docx.parse, office.repacked(office.word(), {"word/document.xml": tags})) is Reason.TOO_COMPLEX
    packages.check(office.repacked(office.word(), {"custom/document.xml": tags}), "word/")


def test_a_part_that_holds_more_than_it_says_is_unreadable() -> None:
    data = bytearray(office.repacked(office.word(), {"word/document.xml": b"<a>" + b" " * 5_000_000 + b"</a>"}))
    size = (5_000_007).to_bytes(4, "little")
    assert data.count(size) >= 2
    lying = bytes(data).replace(size, (1000).to_bytes(4, "little"))
    assert refusal(docx.parse, lying) is Reason.UNREADABLE


@pytest.mark.parametrize("charset", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", PARSERS)
def test_declared_entities_are_refused(kind: str, charset: str) -> None:
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha"}">' for n in range(9))
    xml = f'<?xml version="1.0" encoding="{charset}"?><!DOCTYPE x [{laughs}]><x>&l8;</x>'.encode(charset)
    assert refusal(PARSERS[kind], office.repacked(MAKERS[kind](), {MAIN[kind]: xml})) is Reason.UNREADABLE


def test_a_part_in_an_encoding_that_hides_its_marks_is_refused() -> None:
    xml = b'<?xml version="1.0" encoding="utf-7"?>+ADwAIQ-DOCTYPE x+AD4-<x/>'
    assert refusal(docx.parse, office.repacked(office.word(), {"word/document.xml": xml})) is Reason.UNREADABLE


def test_nested_archives_are_not_opened() -> None:
    inner = office.repacked(office.workbook(), {"deep/bomb.bin": bytes(1_000_000)})
    parsed = docx.parse(office.repacked(office.word(), {"word/embeddings/book.xlsx": inner}))
    assert "name" not in parsed.content


@pytest.mark.parametrize("kind", PARSERS)
def test_a_file_of_another_kind_is_unreadable(kind: str, tmp_path: Path) -> None:
    for other in MAKERS.keys() - {kind}:
        job = Job("", kind, f"a.{kind}", "", "", 400, 40)
        assert run(replace(job, source=str(written(tmp_path, MAKERS[other]())))) == {"refused": Reason.UNREADABLE}


def written(directory: Path, data: bytes) -> Path:
    file = directory / "raw"
    file.write_bytes(data)
    return file
