"""Whether the service that is examined runs here, and which version of it."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from yarl import URL

from backend_kit.client.json_client import CallFailed
from backend_kit.doctor.checks import Check, Diagnosis, Health
from backend_kit.doctor.http import get, readiness, unreached
from backend_kit.settings import App

_BUILD: Final = b"app_build_info{"
_VERSION: Final = b'version="'
_IN_VERSIONS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyz.+-")
_LONGEST: Final = 20
_WHAT: Final = "service"


def itself_check(app: App, version: str) -> Check:
    """The check of whether the service answers where its configuration has it listen. `version` is that of this
    code."""
    return Check(_WHAT, lambda: _look(app, version), "it stands still: its log, and py-spy dump --pid, say where")


async def _look(app: App, version: str) -> list[Diagnosis]:
    url = URL(f"http://{_reachable(app.address)}:{app.port}{app.base_url}/ready")
    try:
        reply = await get(url)
    except CallFailed as failure:
        if failure.kind == "reset":
            return [Diagnosis(_WHAT, Health.NOT_USED, f"not running: nothing listens on port {app.port}")]
        return [unreached(_WHAT, url, failure, f"app.port {app.port}: see who listens there (ss -ltnp)")]
    found = readiness(_WHAT, url, reply, f"app.port: {app.port} is another program's (ss -ltnp)")
    return [found, *_versions(await _running(app), version, app.workers)]


async def _running(app: App) -> list[str]:
    """The version of each worker that tells its own."""
    if not app.metrics_enabled:
        return []
    urls = [URL(f"http://{_reachable(app.metrics_address)}:{port}/metrics") for port in app.metrics_ports]
    return [told for told in await asyncio.gather(*map(_version_at, urls)) if told]


async def _version_at(url: URL) -> str:
    try:
        return _version_in((await get(url)).body)
    except CallFailed:
        return ""


def _versions(running: Sequence[str], version: str, workers: int) -> list[Diagnosis]:
    if not running:
        return []
    figure = f"{', '.join(sorted(set(running)))} in {len(running)} of {workers} processes, installed is {version}"
    if set(running) != {version}:
        return [Diagnosis("version", Health.WRONG, figure, "restart the service: it runs what was installed before")]
    if len(running) < workers:
        return [Diagnosis("version", Health.WRONG, figure, "its log says why a worker is left out (ALARM worker)")]
    return [Diagnosis("version", Health.OK, figure)]


def _version_in(metrics: bytes) -> str:
    """The version in an exposition; empty where there is none that could be ours."""
    build = metrics.partition(b"\n" + _BUILD)[2].partition(b"\n")[0]
    return as_version(build.partition(_VERSION)[2].partition(b'"')[0].decode("ascii", "replace"))


def as_version(said: object) -> str:
    """What a program says of its version; empty for what cannot be one."""
    fits = isinstance(said, str) and len(said) <= _LONGEST and _IN_VERSIONS.issuperset(said)
    return str(said) if fits else ""


def _reachable(address: str) -> str:
    """Where to reach, on this machine, what listens on an address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if ip.is_unspecified:
        return "127.0.0.1" if ip.version == 4 else "[::1]"
    return f"[{ip}]" if ip.version == 6 else str(ip)
