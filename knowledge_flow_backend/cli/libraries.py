"""`knowledge-flow libraries`, `share` and `move`: who may read a library of the caller's, and what is in it.

A library is named by its path, `products/Manuals`, or by its id. Exit codes: 0 done; 1 refused by the service; 2
nothing could be tried (usage, service not reachable, no such library).
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from knowledge_flow_backend.cli.client import NotReachable, add_service, call, detail, session_with, token_of

_PAGE = 1000

Tag = Mapping[str, Any]


class Declined(Exception):
    """The service refused; `str()` is its reason for a person."""


@dataclass(frozen=True, slots=True)
class LibraryService:
    """A running service, and the connections to it."""

    url: str
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded body of a good answer. Raises `Declined`, `NotReachable`."""
        status, answer = await call(self.http, method, self.url + path, json=body)
        if status >= 300:
            raise Declined(f"{method} {path}: HTTP {status}{detail(answer)}")
        return answer

    async def library(self, name: str) -> Tag:
        """The library of that id or path. Raises `NotReachable` where there is none, or more than one."""
        tags: list[Tag] = await self.ask("GET", "/tags")
        wanted = name.strip("/")
        found = [tag for tag in tags if tag["id"] == name] or [tag for tag in tags if tag["full_path"] == wanted]
        if not found:
            raise NotReachable(f"no library {name!r} that you may read (see `knowledge-flow libraries`)")
        if len(found) > 1:
            shown = ", ".join(f"{tag['id']} of {tag['owner_id']}" for tag in found)
            raise NotReachable(f"several libraries are called {name!r}; name one by its id: {shown}")
        return found[0]

    async def documents(self, tag: Tag) -> list[dict[str, Any]]:
        """The documents of a library. Raises as `ask`."""
        documents: list[dict[str, Any]] = []
        while True:
            window = {"offset": len(documents), "limit": _PAGE, "sort_by": "file_name"}
            page = await self.ask("POST", "/documents/browse", {"filters": {"tag_ids": [tag["id"]]}, **window})
            documents += page["documents"]
            if not page["documents"] or len(documents) >= page["total"]:
                return documents


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three commands to a parser."""
    libraries = commands.add_parser("libraries", help="list the libraries that you may read")
    libraries.set_defaults(run=_command(_libraries))
    share = commands.add_parser("share", help="say who reads a library of yours, or see who does")
    share.add_argument("library", metavar="LIBRARY", help="path or id")
    share.add_argument("--user", action="append", default=[], metavar="USER", help="`sub` of a token; may be repeated")
    share.add_argument("--group", action="append", default=[], metavar="GROUP", help="may be repeated")
    share.add_argument("--everyone", action="store_true", help="everyone who has a token")
    share.add_argument("--nobody", action="store_true", help="nobody but you")
    share.set_defaults(run=_command(_share))
    move = commands.add_parser("move", help="move documents of yours between libraries of yours")
    move.add_argument("documents", nargs="+", metavar="DOCUMENT", help="path, as it was ingested, or uid")
    move.add_argument("--from", dest="source", required=True, metavar="LIBRARY", help="path or id")
    move.add_argument("--to", required=True, metavar="LIBRARY", help="path or id")
    move.set_defaults(run=_command(_move))
    for parser in (libraries, share, move):
        add_service(parser)


def _command(
    work: Callable[[LibraryService, argparse.Namespace], Awaitable[int]],
) -> Callable[[argparse.Namespace], int]:
    async def run(options: argparse.Namespace) -> int:
        async with session_with(token_of(options)) as http:
            return await work(LibraryService(options.url.rstrip("/"), http), options)

    def command(options: argparse.Namespace) -> int:
        try:
            return asyncio.run(run(options))
        except Declined as declined:
            sys.stderr.write(f"knowledge-flow: {declined}\n")
            return 1

    return command


async def _libraries(service: LibraryService, _options: argparse.Namespace) -> int:
    rows = [("LIBRARY", "DOCUMENTS", "OWNER", "EVERYONE", "ID")]
    for tag in await service.ask("GET", "/tags"):
        everyone = "yes" if tag["everyone"] else "no"
        rows.append((tag["full_path"], str(tag["document_count"]), tag["owner_id"], everyone, tag["id"]))
    _print_table(rows)
    return 0


async def _share(service: LibraryService, options: argparse.Namespace) -> int:
    readers = {"everyone": options.everyone, "users": options.user, "groups": options.group}
    changes = any(readers.values())
    if options.nobody and changes:
        raise NotReachable("--nobody goes with no reader")
    path = f"/tags/{(await service.library(options.library))['id']}/access"
    if changes or options.nobody:
        told = await service.ask("PUT", path, readers)
    else:
        told = await service.ask("GET", path)
    _print_table(
        [
            ("everyone", "yes" if told["everyone"] else "no"),
            ("users", ", ".join(told["users"]) or "none"),
            ("groups", ", ".join(told["groups"]) or "none"),
        ]
    )
    return 0


async def _move(service: LibraryService, options: argparse.Namespace) -> int:
    source, to = await service.library(options.source), await service.library(options.to)
    standing = await service.documents(source)
    failed = 0
    for name in options.documents:
        found = [one for one in standing if name in (one["document_uid"], one["file_path"])]
        try:
            for document in found:
                await _place(service, document, source, to)
        except Declined as declined:
            failed += 1
            _print_line(f"failed    {name}: {declined}")
        else:
            failed += not found
            _print_line(f"moved     {name}" if found else f"failed    {name}: not in {source['full_path']}")
    return 1 if failed else 0


async def _place(service: LibraryService, document: Mapping[str, Any], source: Tag, to: Tag) -> None:
    kept = [tag for tag in document["tag_ids"] if tag not in (source["id"], to["id"])]
    await service.ask("PUT", f"/documents/{document['document_uid']}/tags", {"tag_ids": [*kept, to["id"]]})


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        _print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_line(text: str) -> None:
    # Other people choose the names: none may move the cursor.
    sys.stdout.write("".join(char if char.isprintable() else "?" for char in text) + "\n")
    sys.stdout.flush()
