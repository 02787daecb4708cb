"""`knowledge-flow ingest DIR --library NAME`: sends the files of a directory to a service and reports each result."""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import aiohttp

from backend_kit.wire import dumps
from knowledge_flow_backend.cli.client import (
    EXIT_FAILED,
    NotReachable,
    add_service,
    call,
    decoded,
    detail,
    refuse,
    say,
    session_with,
    token_of,
)
from knowledge_flow_backend.ingest.names import SUFFIXES, suffix

_AT_ONCE = 4
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
_COLOURS = {"success": "green", "unchanged": "dim"}


@dataclass(frozen=True, slots=True)
class Found:
    """The files to send, and how many of other types there are."""

    files: tuple[Path, ...]
    skipped: int


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a file: `success`, `unchanged` or `error`, with the reason as a sentence."""

    path: str
    status: str
    reason: str = ""

    def line(self) -> str:
        """As it is printed."""
        word = {"success": "ok", "unchanged": "unchanged"}.get(self.status, "failed")
        return f"{word:<9} {self.path}{f': {self.reason}' if self.reason else ''}"


Report = Callable[[Result], None]


def add_ingest(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("ingest", help="send the files of a directory to a library")
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory, or one file")
    parser.add_argument("--library", required=True, type=_library_name, metavar="NAME", help="made where it is missing")
    add_service(parser)
    parser.add_argument(
        "--at-once", type=_positive, default=_AT_ONCE, metavar="N", help="files sent at a time (default: %(default)s)"
    )
    parser.set_defaults(run=_ingest)


def _ingest(options: argparse.Namespace) -> int:
    root: Path = options.directory
    if not root.exists():
        return refuse(f"{root} does not exist")
    found = find(root)
    if not found.files:
        return refuse(f"no files to ingest in {root} (read are: {', '.join(sorted(SUFFIXES))})")
    token = token_of(options)
    began = perf_counter()
    try:
        results = asyncio.run(ingest(root, found, options.library, options.url.rstrip("/"), token, options.at_once))
    except KeyboardInterrupt:
        refuse("interrupted; what was sent goes on")
        return EXIT_FAILED
    say(_summary(results, found.skipped, perf_counter() - began))
    return EXIT_FAILED if any(result.status == "error" for result in results) else 0


def find(root: Path) -> Found:
    """The files below a directory that can be read, in order of their names; hidden ones are left out."""
    if root.is_file():
        return Found((root,), 0)
    files: list[Path] = []
    skipped = 0
    for directory, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in _LEFT_OUT)
        for name in sorted(names):
            if name.startswith("."):
                continue
            if suffix(name) in SUFFIXES:
                files.append(Path(directory) / name)
            else:
                skipped += 1
    return Found(tuple(files), skipped)


async def ingest(root: Path, found: Found, library: str, url: str, token: str | None, at_once: int) -> list[Result]:
    """Send every file, `at_once` at a time, each known by its path below `root`. Raises `NotReachable`."""
    results: list[Result] = []
    async with session_with(token) as session:
        tag = await _library(session, url, library)
        with _progress(len(found.files)) as report:
            waiting = iter(found.files)

            async def work() -> None:
                for path in waiting:
                    label = path.name if path == root else path.relative_to(root).as_posix()
                    result = await _send(session, url, tag, path, label)
                    results.append(result)
                    report(result)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_once, len(found.files))):
                    group.create_task(work())
    return results


async def _library(session: aiohttp.ClientSession, url: str, name: str) -> str:
    """The id of the caller's library of that name (`path/name`), which is created where there is none."""
    path, _, last = name.strip("/").rpartition("/")
    status, made = await call(session, "POST", f"{url}/tags", json={"name": last, "path": path, "type": "document"})
    if status == 201:
        return str(made["id"])
    if status == 409:
        _, tags = await call(session, "GET", f"{url}/tags")
        for tag in tags if isinstance(tags, list) else ():
            if (tag["name"], tag["path"]) == (last, path):
                return str(tag["id"])
    raise NotReachable(f"{url} does not give a library {name!r}: HTTP {status}{detail(made)}")


async def _send(session: aiohttp.ClientSession, url: str, tag: str, path: Path, label: str) -> Result:
    try:
        # As a file, not as bytes: it is read while it is sent.
        with await asyncio.to_thread(path.open, "rb") as file:
            form = aiohttp.FormData(quote_fields=False)
            form.add_field("metadata_json", dumps({"tags": [tag], "source_tag": "cli"}).decode())
            form.add_field("files", file, filename=_quotable(label), content_type="application/octet-stream")
            async with session.post(f"{url}/upload-process-documents", data=form) as response:
                if response.status != 200:
                    return Result(label, "error", f"HTTP {response.status}{detail(decoded(await response.read()))}")
                return await _end_of(response, label)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Result(label, "error", f"the connection was lost ({type(error).__name__})")
    except OSError as error:
        return Result(label, "error", os.strerror(error.errno or 0))


async def _end_of(response: aiohttp.ClientResponse, label: str) -> Result:
    try:
        async for raw in response.content:
            line = decoded(raw)
            if isinstance(line, dict) and line.get("step") == "finished":
                return Result(label, str(line.get("status")), str(line.get("error") or ""))
    except (aiohttp.ClientError, TimeoutError):
        pass  # it has answered, so the file is safe with it
    return Result(label, "error", "the service went away; it goes on with the file when it is back")


def _quotable(label: str) -> str:
    """A file name that can stand between quotes in a header; the service would take these characters out anyway."""
    return "".join(char for char in label.replace('"', "'") if char.isprintable()).replace("\\", "_")


def _progress(total: int) -> AbstractContextManager[Report]:
    """A progress bar on a terminal where `rich` is installed, else plain lines."""
    if not sys.stdout.isatty():
        return nullcontext(lambda result: say(result.line()))
    try:
        import rich  # noqa: F401 - a service installed without its extras has none
    except ImportError:
        return nullcontext(lambda result: say(result.line()))
    return _bar(total)


@contextmanager
def _bar(total: int) -> Iterator[Report]:
    """A bar over `total` files; each reported result is printed above it."""
    # Imported here: it takes a tenth of a second, which is wasted where the output is piped.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    columns = (TextColumn("ingesting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("ingesting", total=total)

        def report(result: Result) -> None:
            progress.console.print(Text(result.line(), _COLOURS.get(result.status, "bold red")))
            progress.advance(task)

        yield report


def _summary(results: Sequence[Result], skipped: int, seconds: float) -> str:
    counts = Counter(result.status for result in results)
    parts = [f"{counts['success']} ingested", f"{counts['unchanged']} unchanged", f"{counts['error']} failed"]
    if skipped:
        parts.append(f"{skipped} of other types left out")
    return f"{', '.join(parts)} in {seconds:.1f} s"


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 32:
        raise argparse.ArgumentTypeError("must be 1 to 32")
    return value


def _library_name(text: str) -> str:
    if not text.strip("/ "):
        raise argparse.ArgumentTypeError("must have a name")
    return text
