"""Workbooks: each visible sheet is a section, each run of filled rows in it a table with its first row as header."""

import io
import warnings
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import openpyxl
from openpyxl.utils.exceptions import InvalidFileException

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean
from knowledge_flow_backend.ingest.parsers.packages import check
from knowledge_flow_backend.ingest.tables import table
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_SHEETS = 200
MAX_COLUMNS = 256
MAX_CELLS = 2_000_000
"""Filled cells of a workbook."""
MAX_ROWS = 1_048_576
"""Of a sheet, empty ones included: Excel's own limit, and not what a file says."""
_NAME_CHARS = 100
"""Of a sheet's name; Excel allows 31, a file may hold anything."""
_MOST_SAID = 20
"""Sentences about what was cut, before the rest is only counted."""


def parse(data: bytes, *, max_cells: int = MAX_CELLS) -> Parsed:
    """Parse one file; formulas give the values that were last computed. Raises `Refused`."""
    check(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts that are of no interest here
        try:
            book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
            return _Book(book, max_cells).parsed()
        except (InvalidFileException, OSError):  # OSError: an archive without a workbook
            raise Refused(Reason.UNREADABLE) from None


class _Book:
    """Reads sheets one after the other, within the bounds of the whole workbook."""

    def __init__(self, book: Any, max_cells: int) -> None:
        self._book = book
        self._max_cells = max_cells
        self._writer = Writer()
        self._cells = 0
        self._cut: list[str] = []

    def parsed(self) -> Parsed:
        """The document."""
        shown = [sheet for sheet in self._book.worksheets if sheet.sheet_state == "visible"]
        if hidden := len(self._book.worksheets) - len(shown):
            self._cut.append(f"Hidden sheets were left out ({hidden}).")
        if len(shown) > MAX_SHEETS:
            self._cut.append(f"Of {len(shown)} sheets, the first {MAX_SHEETS} were read.")
        filled = [self._sheet(sheet) for sheet in shown[:MAX_SHEETS]]
        if not any(filled):
            raise Refused(Reason.NO_TEXT)
        title = clean(" ".join((self._book.properties.title or "").split()))
        if more := len(self._cut[_MOST_SAID:]):
            self._cut[_MOST_SAID:] = [f"Further sheets were cut ({more})."]
        return self._writer.parsed(title, cut=" ".join(self._cut))

    def _sheet(self, sheet: Any) -> bool:
        """Write one sheet; whether it holds anything."""
        sheet.reset_dimensions()  # what the file says of them may be anything
        self._writer.heading(1, _name(sheet))
        filled = False
        for run in self._runs(sheet):
            self._writer.add(*_shown(run))
            filled = True
        return filled

    def _runs(self, sheet: Any) -> Iterator[list[list[str]]]:
        """The runs of rows between empty ones."""
        run: list[list[str]] = []
        for row in self._rows(sheet):
            if row:
                run.append(row)
            elif run:
                yield run
                run = []
        if run:
            yield run

    def _rows(self, sheet: Any) -> Iterator[list[str]]:
        """The rows without empty cells at their ends, [] for an empty one."""
        wide = False
        for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
            wide = wide or len(values) > MAX_COLUMNS
            row = [_text(value) for value in values[:MAX_COLUMNS]]
            while row and not row[-1]:
                row.pop()
            self._cells += sum(1 for cell in row if cell)
            if self._cells > self._max_cells or number > MAX_ROWS:
                self._cut.append(f"Sheet {_name(sheet)!r} goes on: its first {number - 1} rows were read.")
                break
            yield row
        if wide:
            self._cut.append(f"Of sheet {_name(sheet)!r}, the first {MAX_COLUMNS} columns were read.")


def _name(sheet: Any) -> str:
    return clean(" ".join(sheet.title.split()))[:_NAME_CHARS]


def _shown(run: Sequence[list[str]]) -> tuple[Kind, str]:
    """A run as a table, or as text where it has one column; columns that are empty at the left are left out."""
    left = min(next(at for at, cell in enumerate(row) if cell) for row in run)
    rows = [row[left:] for row in run]
    if max(len(row) for row in rows) == 1:
        return Kind.PROSE, "\n".join(row[0] for row in rows)
    return Kind.TABLE, table(rows)


def _text(value: Any) -> str:
    """A cell as a person reads it; a day without a time of day is a date."""
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case datetime():
            return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "seconds")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
    return clean(" ".join(str(value).split()))
