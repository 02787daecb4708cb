"""The environment of a run: what a reader needs to judge or repeat it, without credentials."""

import gc
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SECRET_FLAGS = frozenset({"token", "postgres"})
_TCP_SETTINGS = ("net/core/somaxconn", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/ip_local_port_range")
_CGROUP = {
    "cpu.max": Path("/sys/fs/cgroup/cpu.max"),
    "memory.max": Path("/sys/fs/cgroup/memory.max"),
}
_GIT_TIMEOUT_S = 5


def environment(argv: Sequence[str]) -> dict[str, object]:
    """Metadata of this generator process and its machine. `null` stands for what is unknown here."""
    return {
        "argv": without_secrets(argv),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if (changed := _git("status", "--porcelain")) is None else bool(changed),
        "python": platform.python_version(),
        "turnwise": _version("turnwise"),
        "websockets": _version("websockets"),
        "uvloop": _version("uvloop"),
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count(),
        "cpus": sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
        "load_average": list(os.getloadavg()),
        "cgroup": {name: _text(path) for name, path in _CGROUP.items()},
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "tcp": {name: _text(Path("/proc/sys") / name) for name in _TCP_SETTINGS},
        "clock": {"name": "perf_counter", "resolution_s": time.get_clock_info("perf_counter").resolution},
        "gc_threshold": list(gc.get_threshold()),
        "permessage_deflate": False,
    }


def without_secrets(argv: Sequence[str]) -> list[str]:
    """A command line with token and connection string replaced by stars, in whichever form they were given."""
    kept: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.lstrip("-").partition("=")
        flag = word.startswith("-") and name in _SECRET_FLAGS
        if hide_next:
            kept.append("***")
        elif flag and equals:
            kept.append(f"-{name}=***")
        elif "token=" in word:
            kept.append(word.split("token=", 1)[0] + "token=***")
        else:
            kept.append(word)
        hide_next = not hide_next and flag and not equals
    return kept


def _git(*words: str) -> str | None:
    """The output of git in the checkout of this module; None for an installed package or on failure."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(  # noqa: S603 - constant words
            ["git", "-C", str(_ROOT), *words],  # noqa: S607 - whichever git the user has
            capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
