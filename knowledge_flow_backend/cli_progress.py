"""The progress bar of the command line; apart, because `rich` need not be installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from knowledge_flow_backend.cli import Result

_COLOURS = {"success": "green", "unchanged": "dim"}


@contextmanager
def bar(total: int, console: Console | None = None) -> "Iterator[Callable[[Result], None]]":
    """A bar over `total` files; what it gives is told of each result and prints its line above the bar."""
    columns = (
        TextColumn("ingesting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("ingesting", total=total)

        def report(result: "Result") -> None:
            progress.console.print(Text(result.line(), _COLOURS.get(result.status, "bold red")))
            progress.advance(task)

        yield report
