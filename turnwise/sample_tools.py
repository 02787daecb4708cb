"""The MCP server beside `make run`, so that Sammy has something to do: notes, the menu of a canteen, and a clock.

`python -m turnwise.sample_tools --port PORT --notes FILE` serves streamable HTTP on loopback, at `/mcp`. Tools
that only read carry `readOnlyHint`; those that change the notes do not, so that the agent asks a person first.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations

HOST: Final = "127.0.0.1"
MOST_NOTES, MOST_CHARS = 100, 1000
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_DELETES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MENU: Final = {
    "monday": "lentil soup with bread, or pasta with tomato sauce",
    "tuesday": "vegetable curry with rice, or fish with potatoes",
    "wednesday": "spinach lasagne, or chicken with couscous",
    "thursday": "bean chili, or meatballs with mashed potatoes",
    "friday": "pancakes with apple sauce, or fish and chips",
    "saturday": "pumpkin soup with bread, or pizza with mushrooms",
    "sunday": "potato gratin with salad, or roast beef with dumplings",
}
Day = Literal["today", "tomorrow", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


class ToolFailed(Exception):
    """A tool could not do what was asked; `str()` is a sentence that says why."""


class Notes:
    """The notes, in order, in one file that is replaced atomically and readable by its owner alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()  # tools run in threads

    def all(self) -> list[str]:
        """Every note. Raises `ToolFailed` if the file cannot be read."""
        try:
            kept = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            raise ToolFailed("The notes cannot be read.") from None
        if not isinstance(kept, list) or not all(isinstance(note, str) for note in kept):
            raise ToolFailed("The notes cannot be read.")
        return kept

    def add(self, text: str) -> int:
        """Append a note and return its number, from 1. Raises `ToolFailed` if it is empty, too long or one too many."""
        note = " ".join(text.split())
        if not note or len(note) > MOST_CHARS:
            raise ToolFailed(f"A note has 1 to {MOST_CHARS} characters.")
        with self._lock:
            notes = self.all()
            if len(notes) >= MOST_NOTES:
                raise ToolFailed(f"There are {MOST_NOTES} notes already: delete one first.")
            self._keep([*notes, note])
        return len(notes) + 1

    def delete(self, number: int) -> str:
        """Delete the note of that number and return its text. Raises `ToolFailed` if there is none."""
        with self._lock:
            notes = self.all()
            if not 1 <= number <= len(notes):
                raise ToolFailed(f"There is no note {number}: there are {len(notes)}.")
            gone = notes.pop(number - 1)
            self._keep(notes)
        return gone

    def _keep(self, notes: Sequence[str]) -> None:
        try:
            handle, name = tempfile.mkstemp(dir=self._file.parent, prefix=self._file.name)  # made with mode 0600
            with os.fdopen(handle, "w") as file:
                json.dump(notes, file, ensure_ascii=False, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._file)
        except OSError as error:
            raise ToolFailed(f"The notes cannot be written: {error.strerror}.") from None


def sample_tools(notes: Notes, now: Callable[[], datetime]) -> MCPServer:
    """The server with its tools; `now` is the clock."""
    server = MCPServer("Turnwise samples", log_level="WARNING")

    @server.tool(annotations=_READS)
    def current_time() -> str:
        """Say what time it is now, and the date: which day it is today."""
        return f"It is {now():%H:%M on %A, %d %B %Y}."

    @server.tool(annotations=_READS)
    def canteen_menu(day: Day = "today") -> str:
        """Say what the canteen has for lunch, to eat, by its menu."""
        weekday = now().weekday() + (day == "tomorrow") if day in ("today", "tomorrow") else _WEEKDAYS.index(day)
        name = _WEEKDAYS[weekday % 7]
        when = (
            f"{day.capitalize()}, {name.capitalize()}," if day in ("today", "tomorrow") else f"On {name.capitalize()}"
        )
        return f"{when} the canteen has {_MENU[name]}."

    @server.tool(annotations=_READS)
    def list_notes() -> CallToolResult:
        """List the notes: show which ones are kept, read them."""
        return _tool_result(lambda: _listed(notes.all()))

    @server.tool(annotations=_ADDS)
    def add_note(text: str) -> CallToolResult:
        """Add a note: write down a text, keep it, remember it."""
        return _tool_result(lambda: f"Note {notes.add(text)} is kept: {' '.join(text.split())}")

    @server.tool(annotations=_DELETES)
    def delete_note(number: int) -> CallToolResult:
        """Delete a note, remove it for good, by its number."""
        return _tool_result(lambda: f"Note {number} is deleted: {notes.delete(number)}")

    return server


def _tool_result(doing: Callable[[], str]) -> CallToolResult:
    """The tool's result. An exception is not left to the SDK, which would put a prefix before its sentence."""
    try:
        text, failed = doing(), False
    except ToolFailed as reason:
        text, failed = str(reason), True
    return CallToolResult(content=[TextContent(text=text)], is_error=failed)


def _listed(notes: Sequence[str]) -> str:
    if not notes:
        return "There are no notes."
    listed = "; ".join(f"({number}) {note}" for number, note in enumerate(notes, 1))
    return f"There {'is 1 note' if len(notes) == 1 else f'are {len(notes)} notes'}: {listed}"


class _QuietServer(uvicorn.Server):
    """Looks twice a second whether it should end; uvicorn's own does ten times, for as long as nobody uses it."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 - a signal sets what it looks at, not an event
            await asyncio.sleep(0.5)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.sample_tools", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on loopback")
    parser.add_argument("--notes", type=Path, required=True, help="file that the notes are kept in")
    options = parser.parse_args(argv)
    tools = sample_tools(Notes(options.notes), lambda: datetime.now().astimezone())
    app = tools.streamable_http_app()
    # A client that listens for changes keeps its connection open: the shutdown does not wait for it.
    server = _QuietServer(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    try:
        listening = socket.create_server((HOST, options.port), backlog=128)
    except OSError as error:
        print(f"sample tools: cannot listen on {HOST}:{options.port}: {error.strerror}", file=sys.stderr)
        return 2
    with listening:
        print(f"sample tools: listens on http://{HOST}:{options.port}/mcp", flush=True)
        server.run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
