"""Values in columns (CSV, TSV): one table, whose first row is its header unless it holds nothing but numbers."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import decode, lines_of
from knowledge_flow_backend.ingest.tables import header_rule, table_row
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_COLUMNS = 256
MAX_CELLS = 2_000_000
"""Bound of the written table, empty cells included: rows that are shorter than the longest are filled up."""
MAX_CHARS = 60_000_000
"""Bound of the written table: bars around empty cells are several times as long as the commas they replace."""
_MAX_CELL_CHARS = 8 * 1024 * 1024
_END = "\x1f"
"""Put after the last line; no text contains it. A reader that does not meet it there is inside quotes."""
_DELIMITERS = ",;\t|"
_SAMPLE_CHARS = 64 * 1024
_SAMPLE_ROWS = 200
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[-+]?[\d.,\s]*%?")


def parse(data: bytes, *, max_chars: int = MAX_CHARS, max_cells: int = MAX_CELLS) -> Parsed:
    """Parse one file; its title is its name. Raises `Refused`."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    content = decode(data)
    delimiter = _delimiter(content)
    quoting, columns = _measured(content, delimiter)
    if not columns:
        raise Refused(Reason.NO_TEXT)
    width = min(columns, MAX_COLUMNS)
    rows = (row for row in _rows(content, delimiter, quoting) if any(row))
    lines: list[str] = []
    length = 0
    cut = [f"Of {columns} columns, the first {MAX_COLUMNS} were read."] if columns > width else []
    for row in _headed(rows, width):
        if length > max_chars or len(lines) * width > max_cells:
            cut.append(f"The table goes on: its first {len(lines) - 1} rows were read.")
            break
        lines.append(table_row([*row[:width], *[""] * (width - len(row))]))
        length += len(lines[-1]) + 1
    lines.insert(1, header_rule(width))
    writer = Writer()
    writer.add(Kind.TABLE, "\n".join(lines))
    return writer.parsed("", cut=" ".join(cut))


def _rows(content: str, delimiter: str, quoting: int) -> Iterator[list[str]]:
    """The rows. Raises csv.Error for a cell that is too long, and at the end where a quote was never closed."""
    lines = chain(lines_of(content), (_END,))
    for row in csv.reader(lines, delimiter=delimiter, quoting=quoting):  # type: ignore[arg-type]
        if row == [_END]:
            return
        yield [cell.strip() for cell in row]
    raise csv.Error


def _delimiter(content: str) -> str:
    """The sign that divides most of the first rows into the same number of cells, more than one."""
    sample = list(islice(lines_of(content[:_SAMPLE_CHARS]), _SAMPLE_ROWS))
    if len(sample) > 1 and len(content) > _SAMPLE_CHARS:
        sample.pop()  # it may be cut
    return max(_DELIMITERS, key=lambda delimiter: _agreement(sample, delimiter))


def _agreement(sample: Sequence[str], delimiter: str) -> tuple[float, int]:
    try:
        widths = Counter(len(row) for row in csv.reader(sample, delimiter=delimiter) if row)
    except csv.Error:
        return 0.0, 0
    width, rows = max(widths.items(), key=lambda item: item[1], default=(0, 0))
    return (rows / widths.total(), width) if width > 1 else (0.0, 0)


def _measured(content: str, delimiter: str) -> tuple[int, int]:
    """How quotes are read, and the number of columns: a quote that is never closed makes them ordinary signs."""
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        try:
            return quoting, max((len(row) for row in _rows(content, delimiter, quoting) if any(row)), default=0)
        except csv.Error:
            continue
    raise Refused(Reason.UNREADABLE)


def _headed(rows: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    first = next(rows)
    if all(_NUMBER.fullmatch(cell) and _DIGIT.search(cell) for cell in first if cell):
        yield [f"column {number}" for number in range(1, width + 1)]
    yield first
    yield from rows
