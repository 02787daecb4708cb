"""Which tests run: those of pip's packages always, those of other programs where they are asked for.

A test that needs a program outside of Python carries the marker of its name. Chromium's run where it is; the others
only where `TURNWISE_REQUIRE` names them (`java,faketime`, or `all`), so that a run takes as long on a machine that
happens to have a JDK as on one that has not. What is required and missing is a failure; the end of the run says what
was left out, with the Debian packages that bring it.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Needed:
    """A program that tests with the marker `name` need. `runs_where_here`: without being asked for."""

    name: str
    packages: str
    is_here: Callable[[], bool]
    runs_where_here: bool = False


def _on_path(*programs: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(program) for program in programs)


def _debian_postgres() -> bool:
    """A server with the extension that the wheel's Postgres lacks."""
    return any(
        Path(f"/usr/share/postgresql/{binary.parts[-3]}/extension/pg_stat_statements.control").is_file()
        for binary in Path("/usr/lib/postgresql").glob("*/bin/postgres")
    )


def system_program(name: str) -> str | None:
    """The path of a program that Debian has where only root looks, None where it is not."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


PROGRAMS = (
    Needed("java", "default-jdk-headless maven", _on_path("java", "mvn")),
    Needed("chromium", "chromium fonts-dejavu-core", _on_path("chromium"), runs_where_here=True),
    Needed("prometheus", "prometheus", _on_path("prometheus", "promtool")),
    Needed("postgres", "postgresql postgresql-contrib", _debian_postgres),
    Needed("pgbouncer", "pgbouncer", lambda: system_program("pgbouncer") is not None),
    Needed("redis", "redis-server", _on_path("redis-server", "redis-cli")),
    Needed("proxies", "haproxy nginx", lambda: all(map(system_program, ("haproxy", "nginx")))),
    Needed("faketime", "faketime", _on_path("faketime")),
    Needed("node", "nodejs npm", _on_path("node", "npm")),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run does with the tests of each program."""

    missing: tuple[Needed, ...]
    """Required, and not here: their tests fail, and the run does."""
    left_out: tuple[Needed, ...]
    """Their tests are not run."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ, programs: tuple[Needed, ...] = PROGRAMS) -> "Choice":
        """As `TURNWISE_REQUIRE` says. Raises `pytest.UsageError` where it names what there is not."""
        asked = environment.get("TURNWISE_REQUIRE", "")
        names = {program.name for program in programs}
        required = names if asked == "all" else {name.strip() for name in asked.split(",") if name.strip()}
        if unknown := sorted(required - names):
            raise pytest.UsageError(
                f"TURNWISE_REQUIRE: {', '.join(unknown)} is none of all, {', '.join(sorted(names))}"
            )
        missing, left_out = [], []
        for program in programs:
            if program.name in required:
                missing += [] if program.is_here() else [program]
            elif not (program.runs_where_here and program.is_here()):
                left_out.append(program)
        return cls(tuple(missing), tuple(left_out))
