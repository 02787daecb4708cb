import pytest

from knowledge_flow_backend.ingest.blocks import Kind, Parsed
from knowledge_flow_backend.ingest.chunks import ChunkRules, chunks
from knowledge_flow_backend.ingest.parsers import csv, html, markdown
from knowledge_flow_backend.ingest.tables import table, with_headers

HEADER = "| number | name |\n|---|---|"
ROWS = [f"| {number} | the name of {number} |" for number in range(60)]


def divided(parsed: Parsed, size: int = 300) -> list[str]:
    """The texts of all chunks, each checked to be the slice that it says it is."""
    whole = with_headers(parsed, size)
    found = []
    for chunk in chunks(whole, ChunkRules(size, 30)):
        assert whole.content[chunk.start : chunk.end] == chunk.text
        assert len(chunk.text) <= size * 1.5
        found.append(chunk.text)
    return found


def page(rows: list[str]) -> bytes:
    cells = "".join(f"<tr><td>{'</td><td>'.join(row.strip('| ').split(' | '))}</td></tr>" for row in rows)
    return f"<body><p>Before.</p><table><tr><th>number</th><th>name</th></tr>{cells}</table><p>After.</p>".encode()


SOURCES = {
    "markdown": lambda rows: markdown.parse("\n".join(["Before.", "", HEADER, *rows, "", "After."]).encode()),
    "html": lambda rows: html.parse(page(rows)),
    "csv": lambda rows: csv.parse(
        "\n".join(["number,name", *(row.strip("| ").replace(" | ", ",") for row in rows)]).encode()
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_table_that_fits_is_in_one_chunk(source: str) -> None:
    (holding,) = [text for text in divided(SOURCES[source](ROWS[:6])) if "|" in text]
    assert "\n".join([HEADER, *ROWS[:6]]) in holding


@pytest.mark.parametrize("source", SOURCES)
def test_a_longer_one_is_divided_between_rows_below_its_header(source: str) -> None:
    parts = [text for text in divided(SOURCES[source](ROWS)) if "|" in text]
    assert len(parts) > 5
    for part in parts:
        assert part.count(HEADER) == 1
        assert all(line.count("|") == 3 for line in part.split("\n") if line.startswith("|") and "---" not in line)
    told = [line for part in parts for line in part.split("\n") if line.startswith("| ") and "number" not in line]
    assert told == ROWS


def test_what_stands_around_a_divided_table_keeps_its_place() -> None:
    whole = with_headers(SOURCES["markdown"](ROWS), 300)
    texts = [whole.content[block.start : block.end] for block in whole.blocks]
    assert (texts[0], texts[-1]) == ("Before.", "After.")
    assert all(block.kind is Kind.TABLE for block in whole.blocks[1:-1])
    assert whole.content.startswith(f"Before.\n\n{HEADER}\n{ROWS[0]}")


def test_a_document_without_long_tables_is_left_as_it_is() -> None:
    parsed = SOURCES["markdown"](ROWS[:3])
    assert with_headers(parsed, 300) is parsed


def test_a_row_that_is_longer_than_a_chunk_is_divided_as_text_is() -> None:
    long = f"| 7 | {'word ' * 200}|"
    texts = divided(SOURCES["markdown"]([ROWS[0], long, ROWS[1]]))
    assert "".join("".join(text.split()) for text in texts).count("word") == 200
    assert max(len(text) for text in texts) <= 300


def test_a_header_that_leaves_no_room_is_not_repeated() -> None:
    wide = "\n".join([f"| {'h' * 200} |", "|---|", *(f"| {number} {'x' * 90} |" for number in range(9))])
    texts = divided(markdown.parse(wide.encode()))
    assert sum("hhh" in text for text in texts) == 1


def test_cells_are_of_one_line_and_rows_of_one_width() -> None:
    assert table([["a", "b|c"], ["one\ntwo"], ["", ""]]) == "| a | b\\|c |\n|---|---|\n| one two |  |"
    assert table([["", ""]]) == ""
