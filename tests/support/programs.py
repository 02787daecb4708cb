"""Which programs outside of Python are here, and which tests must go without them.

A test that needs one carries the marker of its name; where the program is missing the test is deselected and the end
of the run says so with the Debian packages that bring it. With `TURNWISE_REQUIRE=all` a missing program is a failure.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Needed:
    """A program that tests with the marker `name` need."""

    name: str
    packages: str
    is_here: Callable[[], bool]


def _on_path(*programs: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(program) for program in programs)


def _debian_postgres() -> bool:
    """A server with the extension that the wheel's Postgres lacks."""
    return any(
        Path(f"/usr/share/postgresql/{binary.parts[-3]}/extension/pg_stat_statements.control").is_file()
        for binary in Path("/usr/lib/postgresql").glob("*/bin/postgres")
    )


PROGRAMS = (
    Needed("java", "default-jdk-headless maven", _on_path("java", "mvn")),
    Needed("chromium", "chromium fonts-dejavu-core", _on_path("chromium")),
    Needed("prometheus", "prometheus", _on_path("prometheus", "promtool")),
    Needed("postgres", "postgresql postgresql-contrib", _debian_postgres),
    Needed("faketime", "faketime", _on_path("faketime")),
    Needed("node", "nodejs npm", _on_path("node", "npm")),
)


def missing_programs(programs: tuple[Needed, ...] = PROGRAMS) -> list[Needed]:
    """Those that are not here."""
    return [program for program in programs if not program.is_here()]
