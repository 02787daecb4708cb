"""Whether the libraries that matter are those that this version was tried with."""

from importlib.metadata import PackageNotFoundError

from backend_kit.doctor.checks import Health
from turnwise.installed import installed_findings

REQUIRED = [
    "aiohttp==3.14.*",
    'langgraph==1.2.*; extra == "agentic"',
    'sqlalchemy[asyncio]==2.1.*; extra == "agentic"',
    'sqlalchemy[asyncio]==2.1.*; extra == "knowledge-flow"',
    "orjson>=3.13",
]


def installed(**versions: str):  # type: ignore[no-untyped-def]
    def version_of(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return installed_findings(REQUIRED, version_of)


def test_what_runs_here_is_as_it_should_be() -> None:
    own, libraries = installed_findings()
    assert own.state is libraries.state is Health.OK
    assert libraries.figure.split()[0] >= "1"


def test_each_library_with_an_upper_bound_counts_once_and_what_is_not_installed_not() -> None:
    own, libraries = installed(turnwise="9.9.1", aiohttp="3.14", sqlalchemy="2.1.7", orjson="1.0")
    assert own.figure.startswith("9.9.1 on Python 3.")
    assert (libraries.state, libraries.figure) == (Health.OK, "2 whose version matters are as they should be")


def test_a_library_of_another_version_is_named() -> None:
    _, libraries = installed(turnwise="0.1.0", aiohttp="3.140.1", langgraph="1.2.3", sqlalchemy="2.0.9")
    assert libraries.state is Health.WRONG
    assert libraries.figure == "aiohttp 3.140.1 (wants 3.14.*), sqlalchemy 2.0.9 (wants 2.1.*)"
