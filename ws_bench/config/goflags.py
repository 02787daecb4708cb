"""A command line in Go's dialect: one dash or two, `-name=value`, booleans that may stand alone."""

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from ws_bench.errors import UsageError
from ws_bench.record.golang import parse_bool

_HELP_FLAGS = frozenset({"h", "help"})


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError` instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def join_go_flags(argv: Sequence[str], value_flags: frozenset[str]) -> list[str]:
    """Each `-name value` and `--name value` as `--name=value`, so that a value may begin with a dash as in Go."""
    joined: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        if name in _HELP_FLAGS and word.startswith("-"):
            joined.append("--help")
        elif not word.startswith("-") or not name:
            joined.append(word)
        elif equals or name not in value_flags:
            joined.append(f"--{name}{equals}{value}")
        else:
            following = next(rest, None)
            if following is None:
                raise UsageError(f"flag needs an argument: -{name}")
            joined.append(f"--{name}={following}")
    return joined


class Flags:
    """The parser under construction; remembers which flags take a value, which Go's dialect needs to know."""

    def __init__(self, prog: str, description: str) -> None:
        self.parser = Parser(prog=prog, allow_abbrev=False, description=description)
        self.value_flags: set[str] = set()

    def value(self, name: str, default: object, kind: Callable[[str], object], help_text: str) -> None:
        """A flag that needs a value, given as `-name value` or `-name=value`."""
        self.value_flags.add(name)
        self.parser.add_argument(f"--{name}", default=default, type=_converter(kind), help=help_text, metavar="VALUE")

    def many(self, name: str, kind: Callable[[str], object], help_text: str) -> None:
        """A flag with a value that may be given several times."""
        self.value_flags.add(name)
        self.parser.add_argument(
            f"--{name}", default=[], action="append", type=_converter(kind), help=help_text, metavar="VALUE"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The values of a command line. Raises `UsageError`; `-h` prints the help and raises SystemExit(0)."""
        return self.parser.parse_args(join_go_flags(argv, frozenset(self.value_flags)))

    def switch(self, name: str, help_text: str, *, default: bool = False) -> None:
        """A boolean: `-name` alone means true; `-name=false` as in Go, and `-name false`, which Go misreads."""
        self.parser.add_argument(
            f"--{name}",
            nargs="?",
            const=True,
            default=default,
            type=_converter(parse_bool),
            help=help_text,
            metavar="BOOL",
        )


def _converter(kind: Callable[[str], object]) -> Callable[[str], object]:
    """`kind` with its refusals in argparse's own error, which names the flag."""

    def convert(text: str) -> object:
        try:
            return kind(text)
        except UsageError as failure:
            raise argparse.ArgumentTypeError(str(failure)) from failure
        except ValueError as failure:
            raise argparse.ArgumentTypeError(f"invalid value {text!r}") from failure

    return convert
