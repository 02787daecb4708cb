"""One line of the table: a promise, what was seen of it, the bound, and whether it holds."""

from collections.abc import Iterable
from dataclasses import dataclass

OK = "ok"
MISSED = "MISSED"
NOT_RUN = "not run"
LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure with its bound, both as they are printed. `verdict` is ok, MISSED, not run or left out."""

    id: str
    what: str
    figure: str
    bound: str
    verdict: str

    def line(self) -> str:
        """As the console shows it."""
        return f"{self.id:8} {self.what:72} {self.figure:>24}  {self.bound:>12}  {self.verdict}"

    def cells(self) -> str:
        """As a row of a Markdown table."""
        return f"| {self.id} | {self.what} | {self.figure} | {self.bound} | {self.verdict} |"


def exactly(row: str, what: str, figure: float, bound: float, unit: str = "") -> Row:
    """The figure must be the bound."""
    return _row(row, what, _text(figure, unit), f"= {_text(bound, unit)}", figure == bound)


def none_of(row: str, what: str, figure: int, *, of: int, unit: str) -> Row:
    """The figure must be 0 among at least one: 0 of nothing shows nothing."""
    return _row(row, what, f"{figure} of {of} {unit}", "= 0", figure == 0 and of > 0)


def none_lost(row: str, what: str, lost: int, wrong: int, *, of: int, words: str) -> Row:
    """Nothing of what was acknowledged may be lost or stored otherwise; `words` say what was."""
    figure = f"{lost} lost, {wrong} wrong of {of}"
    return _row(row, f"{what}: {words}" if words else what, figure, "= 0, 0", lost == wrong == 0 and of > 0)


def all_of(row: str, what: str, figure: int, *, of: int, unit: str) -> Row:
    """The figure must be everything there was, and there must have been something."""
    return _row(row, what, f"{figure} of {of} {unit}", "all", figure == of and of > 0)


def at_most(row: str, what: str, figure: float, bound: float, unit: str) -> Row:
    """The figure must not be above the bound."""
    return _row(row, what, _text(figure, unit), f"≤ {_text(bound, unit)}", figure <= bound)


def at_least(row: str, what: str, figure: float, bound: float, unit: str) -> Row:
    """The figure must not be below the bound."""
    return _row(row, what, _text(figure, unit), f"≥ {_text(bound, unit)}", figure >= bound)


def broken(names: Iterable[str], words: str) -> list[Row]:
    """The rows of a scenario that could not be carried out: each of them is missed."""
    return [Row(name, words, "-", "-", MISSED) for name in names]


def not_run(row: str, what: str, why: str) -> Row:
    """A row for which this machine lacks a program: no gap is allowed where everything is required."""
    return Row(row, what, why, "-", NOT_RUN)


def left_out(row: str, what: str, why: str) -> Row:
    """A row for which we lack a right; another row shows the same in another way."""
    return Row(row, what, why, "-", LEFT_OUT)


def _row(row: str, what: str, figure: str, bound: str, good: bool) -> Row:
    return Row(row, what, figure, bound, OK if good else MISSED)


def _text(figure: float, unit: str) -> str:
    number = f"{figure:.0f}" if float(figure).is_integer() else f"{figure:.2f}"
    return f"{number} {unit}".strip()
