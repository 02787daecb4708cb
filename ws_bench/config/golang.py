"""Go's dialect: command lines (one dash or two, booleans that may stand alone), durations, booleans; and numbers."""

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ws_bench.errors import UsageError

_HELP_FLAGS = frozenset({"h", "help"})
_HELP_WIDTH, _HELP_COLUMN = 118, 34
_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `90s`, `2m27.81s` or `0`. Raises `UsageError`; below zero is refused too."""
    body = text.removeprefix("+")
    if body == "0":
        return 0.0
    terms = list(_TERM.finditer(body))
    if not terms or "".join(term.group(0) for term in terms) != body:
        raise UsageError(f"invalid duration {text!r} (such as 90s, 1m30s, 250ms)")
    return sum(float(term.group(1)) * _UNIT_NS[term.group(2)] for term in terms) / 1e9


def format_duration(seconds: float) -> str:
    """A duration rounded to whole milliseconds, half away from zero, as Go prints it: `31.816s`, `2m27.81s`."""
    millis = int(seconds * 1000 + 0.5)
    if millis == 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    tail = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") + "s"
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes_left}m{tail}"
    return f"{minutes_left}m{tail}" if minutes_left else tail


def figure(value: float) -> str:
    """A number for a reader: at most three decimals, an exponent only below a thousandth."""
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:g}"


def milliseconds(value: float) -> str:
    """Milliseconds for a reader: whole ones, and one decimal below ten, so that a fast answer does not read 0 ms."""
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def parse_bool(text: str) -> bool:
    """A Go boolean: `1 t T true TRUE True` and their opposites. Raises `UsageError`."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise UsageError(f"invalid boolean {text!r} (true or false)")


def format_bool(value: bool) -> str:
    """`true` or `false`."""
    return "true" if value else "false"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError` instead of exiting. `written` writes its help, if it is given."""

    written: Callable[[], str] | None = None

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def format_help(self) -> str:
        return super().format_help() if self.written is None else self.written()


def join_go_flags(argv: Sequence[str], value_flags: frozenset[str]) -> list[str]:
    """Each `-name value` and `--name value` as `--name=value`, so that a value may begin with a dash as in Go.

    Raises `UsageError` for a flag without its value.
    """
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


@dataclass(frozen=True, slots=True)
class _Described:
    """A flag in the help: `like` is a value as it may be written."""

    name: str
    like: str
    text: str
    kind: Callable[[str], object]


class Flags:
    """A parser under construction; it records which flags take a value, which Go's syntax depends on.

    With `group` the help is ours: groups with an example each, flags with a value as it may be written, and defaults.
    """

    def __init__(self, prog: str, description: str) -> None:
        self.parser = Parser(prog=prog, allow_abbrev=False, description=description)
        self.value_flags: set[str] = set()
        self._others: set[str] = set()
        """Other names of flags that take a value."""
        self.program = prog
        """Whose command lines the examples of the groups from here on are."""
        self._groups: list[tuple[str, str, list[_Described]]] = []

    def group(self, title: str, example: str) -> None:
        """Flags from here on stand under this title, which ends with a command line of theirs, without the program."""
        self._groups.append((title, f"{self.program} {example}", []))
        self.parser.written = self._help

    def value(
        self,
        name: str,
        default: object,
        kind: Callable[[str], object],
        help_text: str,
        like: str = "VALUE",
        *,
        also: tuple[str, ...] = (),
    ) -> None:
        """A flag that needs a value, given as `-name value` or `-name=value`; `like` is one, `also` its other names."""
        self._add(name, like, help_text, kind)
        self.value_flags.add(name)
        self._others.update(also)
        names = [f"--{one}" for one in (*also, name)]
        convert, dest = _converter(kind), name.replace("-", "_")
        self.parser.add_argument(*names, dest=dest, default=default, type=convert, help=help_text, metavar="VALUE")

    def many(self, name: str, kind: Callable[[str], object], help_text: str, like: str = "VALUE") -> None:
        """A flag with a value that may be given several times."""
        self._add(name, like, help_text, kind)
        self.value_flags.add(name)
        self.parser.add_argument(
            f"--{name}", default=[], action="append", type=_converter(kind), help=help_text, metavar="VALUE"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The values of a command line. Raises `UsageError`; `-h` prints the help and raises SystemExit(0)."""
        return self.parser.parse_args(join_go_flags(argv, frozenset(self.value_flags | self._others)))

    def switch(self, name: str, help_text: str, *, default: bool = False) -> None:
        """A boolean: `-name` alone means true; `-name=false` as in Go, and `-name false`, which Go misreads."""
        self._add(name, "", help_text, parse_bool)
        self.parser.add_argument(
            f"--{name}",
            nargs="?",
            const=True,
            default=default,
            type=_converter(parse_bool),
            help=help_text,
            metavar="BOOL",
        )

    def _add(self, name: str, like: str, text: str, kind: Callable[[str], object]) -> None:
        if self._groups and text is not argparse.SUPPRESS:
            self._groups[-1][2].append(_Described(name, like, text, kind))

    def _help(self) -> str:
        lines = [f"usage: {self.parser.prog} [-flag VALUE] [-flag=VALUE] ...", "", self.parser.description or ""]
        for title, example, flags in self._groups:
            lines += ["", f"{title}:"]
            for flag in flags:
                lines += self._entry(flag)
            lines += [f"  example: {example}"]
        return "\n".join(lines) + "\n"

    def _entry(self, flag: _Described) -> list[str]:
        head = f"  -{flag.name} {flag.like}".rstrip()
        default = _shown(self.parser.get_default(flag.name.replace("-", "_")), flag.kind)
        # Other parts of the help are argparse's, which takes a percent sign twice.
        told = textwrap.wrap(flag.text.replace("%%", "%") + default, _HELP_WIDTH - _HELP_COLUMN)
        if len(head) < _HELP_COLUMN - 1:
            told[0] = head.ljust(_HELP_COLUMN) + told[0]
        else:
            told = [head, " " * _HELP_COLUMN + told[0], *told[1:]]
        return [told[0], *(line if line.startswith(" ") else " " * _HELP_COLUMN + line for line in told[1:])]


def _shown(default: object, kind: Callable[[str], object]) -> str:
    """A default behind its flag's text; nothing where the flag changes nothing unless it is given."""
    if isinstance(default, bool):
        text = format_bool(default)
    elif kind is parse_duration and isinstance(default, float):
        text = format_duration(default) if default else ""
    elif isinstance(default, tuple):
        text = ",".join(str(item) for item in default if item)
    elif isinstance(default, int | float | str):
        text = figure(default) if isinstance(default, float) else str(default)
    else:
        text = ""
    return f" (default {text})" if text else ""


def _converter(kind: Callable[[str], object]) -> Callable[[str], object]:
    """`kind` with its errors as argparse's own, which name the flag."""

    def convert(text: str) -> object:
        try:
            return kind(text)
        except UsageError as failure:
            raise argparse.ArgumentTypeError(str(failure)) from failure
        except ValueError as failure:
            raise argparse.ArgumentTypeError(f"invalid value {text!r}") from failure

    return convert
