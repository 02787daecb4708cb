"""HAProxy and nginx in front of instances of the test, as `deploy/proxy` has them."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.programs import system_program

Kind = Literal["haproxy", "nginx"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FILES: Final[dict[Kind, Path]] = {
    "haproxy": ROOT / "deploy/proxy/haproxy.cfg",
    "nginx": ROOT / "deploy/proxy/nginx.conf",
}
TRUSTED: Final = {"connections": {"trusted_proxies": ["127.0.0.1"]}}
"""What the instances are told of it."""
_INSTANCES: Final = ("8001", "8002", "8003")
SILENCE: Final = re.compile(
    r"\b(?P<name>timeout (?:client|server|tunnel)|(?:proxy_read|proxy_send|send)_timeout) (?P<s>\d+)s\b"
)
"""The seconds after which a file gives up who says nothing, by what they are called there."""


@dataclass(frozen=True, slots=True)
class Balancer:
    """One that runs."""

    kind: Kind
    port: int
    log: Path


def adapted(
    kind: Kind, place: Path, port: int, ports: Sequence[int], *, by_user: bool, faster: int, per_address: int
) -> str:
    """The file with these ports, in directories of the test's own, its silences `faster` times as short, and another
    bound for the connections of an address."""
    text = FILES[kind].read_text()
    for usual, own in zip(_INSTANCES, ports, strict=True):
        text = text.replace(f"127.0.0.1:{usual}", f"127.0.0.1:{own}")
    text = SILENCE.sub(lambda match: f"{match['name']} {int(match['s']) * 1000 // faster}ms", text)
    if kind == "haproxy":
        changes = {"bind :8000": f"bind 127.0.0.1:{port}", "conn_cur gt 500": f"conn_cur gt {per_address}"}
        if by_user:
            changes["default_backend any"] = "default_backend by_user"
        if os.geteuid() != 0:
            changes |= dict.fromkeys(("chroot /var/lib/haproxy", "user haproxy", "group haproxy"), "")
    else:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{name}_temp_path {place / name};" for name in kinds)
        changes = {
            "listen 8000": f"listen 127.0.0.1:{port}",
            "addresses 500": f"addresses {per_address}",
            "/run/nginx.pid": str(place / "pid"),
            "/var/log/nginx": str(place),
            "http {": f"http {{ {temporary}",
        }
        if by_user:
            changes["set $balanced any"] = "set $balanced by_user"
    for usual, own in changes.items():
        assert usual in text, usual
        text = text.replace(usual, own)
    return text


@asynccontextmanager
async def balanced(
    kind: Kind, ports: Sequence[int], place: Path, *, by_user: bool = False, faster: int = 1, per_address: int = 500
) -> AsyncIterator[Balancer]:
    """One before three instances on these ports of loopback, until the block ends. `place` is a directory for it."""
    port = free_port()
    text = adapted(kind, place, port, ports, by_user=by_user, faster=faster, per_address=per_address)
    command = _command(kind, place, text)
    log = place / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        await _listening(port, process, log)
        yield Balancer(kind, port, log)
    finally:
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()


def _command(kind: Kind, place: Path, text: str) -> list[str]:
    """What runs the program on this text, which is written to a file."""
    place.mkdir(exist_ok=True)
    file = place / FILES[kind].name
    file.write_text(text)
    program = system_program(kind)
    assert program is not None, f"{kind} is not here"
    arguments = {"haproxy": ["-db", "-f"], "nginx": ["-e", "stderr", "-g", "daemon off;", "-c"]}[kind]
    return with_parent_death_signal([program, *arguments, str(file)], signal.SIGTERM)


async def _listening(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                assert process.returncode is None, await asyncio.to_thread(log.read_text)
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
