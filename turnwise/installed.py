"""What is installed here: this version, Python, and whether the libraries are those that it was tried with."""

import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from backend_kit.doctor.checks import Diagnosis, Health

PACKAGE: Final = "turnwise"
_EXACT: Final = "=="
_ANY: Final = ".*"


def installed_findings(
    required: Iterable[str] | None = None, version_of: Callable[[str], str] = version
) -> list[Diagnosis]:
    """Turnwise and Python, and the libraries whose version matters: those with an upper bound, which are used beyond
    what they document. `required` are the requirements of this package's metadata, by default its own."""
    bounded = list(_bounded(requires(PACKAGE) or [] if required is None else required))
    here = [(name, wanted, found) for name, wanted in bounded if (found := _found(name, version_of)) is not None]
    others = [f"{name} {found} (wants {wanted}.*)" for name, wanted, found in here if not _is_of(found, wanted)]
    figure = f"{_found(PACKAGE, version_of) or 'unknown'} on Python {platform.python_version()}"
    rows = [Diagnosis("turnwise", Health.OK, figure)]
    if others:
        remedy = f'pip install --force-reinstall "{PACKAGE}[...]", in a checkout ./deploy/toolchain.sh sync'
        return [*rows, Diagnosis("libraries", Health.WRONG, ", ".join(others), remedy)]
    return [*rows, Diagnosis("libraries", Health.OK, f"{len(here)} whose version matters are as they should be")]


def _bounded(required: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and version, `1.2` for `==1.2.*`, of each requirement with an upper bound, once."""
    seen = set()
    for requirement in required:
        named = requirement.partition(";")[0].strip()
        name, exact, wanted = named.partition(_EXACT)
        name = name.partition("[")[0].strip()
        if exact and wanted.endswith(_ANY) and name not in seen:
            seen.add(name)
            yield name, wanted.removesuffix(_ANY)


def _found(name: str, version_of: Callable[[str], str]) -> str | None:
    """The version that is installed; None for what an extra would bring that was not asked for."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


def _is_of(found: str, wanted: str) -> bool:
    return found == wanted or found.startswith(f"{wanted}.")
