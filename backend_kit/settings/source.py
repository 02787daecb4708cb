"""Reads configuration files (YAML and `.env`) as plain data, with the place of each key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from backend_kit.settings.base import SettingsError

KeyPath = tuple[str | int, ...]

# An alias that refers to many aliases grows exponentially; no configuration has this many entries.
_MAX_ENTRIES = 100_000
_MERGE = "tag:yaml.org,2002:merge"
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class YamlDocument:
    """The content of a file, and the place of each key as `file:line` (or the variable that set it)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.data: dict[str, Any] = {}
        self.places: dict[KeyPath, str] = {}

    def place(self, path: KeyPath) -> str:
        """The place of `path`, or of the nearest mapping around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return f"{self.file}:1"

    def error(self, path: KeyPath, reason: str) -> SettingsError:
        """The one line that ends the start: place, key path and a reason that contains no value."""
        parts = [self.place(path), dotted(path), reason] if path else [self.place(path), reason]
        return SettingsError(one_line(": ".join(parts)))


def read_yaml(file: Path) -> YamlDocument:
    """Read a mapping. Raises `SettingsError` if it cannot be read or parsed, or has a key twice."""
    return _Reader(file).read()


def read_env_file(file: Path) -> dict[str, tuple[str, str]]:
    """Read `NAME=value` lines: name → (value, place). Comments, `export`, and one pair of quotes are understood.

    Raises `SettingsError` for another line, or as `read_text`.
    """
    found: dict[str, tuple[str, str]] = {}
    for number, raw in enumerate(read_text(file).splitlines(), start=1):
        line = raw.strip().removeprefix("export ").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip().isidentifier():
            raise SettingsError(f"{file}:{number}: must be NAME=value")
        found[name.strip()] = (_unquoted(value.strip()), f"{file}:{number}")
    return found


def read_text(file: Path) -> str:
    """The file as text. Raises `SettingsError` if it cannot be read or is not UTF-8."""
    try:
        raw = file.read_bytes()
    except OSError as exc:
        raise SettingsError(one_line(f"{file}: cannot be read: {exc.strerror}")) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise SettingsError(one_line(f"{file}:{line}: is not UTF-8 text")) from None


def dotted(path: KeyPath) -> str:
    """`("ai", "agents", 0, "id")` as `ai.agents[0].id`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:80]}"
    return text.removeprefix(".")


def one_line(text: str) -> str:
    """`text` without control characters, so that a name cannot break the line or the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _unquoted(value: str) -> str:
    """The value without its quotes, or without the comment behind it."""
    for quote in ("'", '"'):
        if value.startswith(quote) and value.find(quote, 1) > 0:
            return value[1 : value.find(quote, 1)]
    return value.partition(" #")[0].rstrip()


class _Reader:
    """One pass over the nodes of a YAML file; its constructor is the safe one, its keys are text."""

    def __init__(self, file: Path) -> None:
        self.document = YamlDocument(file)
        self.entries = 0

    def read(self) -> YamlDocument:
        text = read_text(self.document.file)
        try:
            self.loader = yaml.SafeLoader(text)
            node = self.loader.get_single_node()
            self.document.data = self._top(node)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            raise self._error_at(mark.line if mark else 0, "is not valid YAML") from None
        except yaml.reader.ReaderError as exc:
            raise self._error_at(text.count("\n", 0, exc.position), "holds a character that YAML forbids") from None
        except RecursionError:
            raise self._error_at(0, "is nested too deeply") from None
        return self.document

    def _error_at(self, line: int, reason: str) -> SettingsError:
        return SettingsError(one_line(f"{self.document.file}:{line + 1}: {reason}"))

    def _top(self, node: yaml.Node | None) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error_at(0 if node is None else node.start_mark.line, "the top level must be a mapping")
        return self._mapping(node, ())

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.entries += 1
        if self.entries > _MAX_ENTRIES:
            raise self._error_at(node.start_mark.line, "has too many entries")
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise self.document.error(path, "has a YAML tag that is not known here")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise self.document.error(path, "is not a value that YAML can read") from None

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.document.places[path] = self._place(node)
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """Explicit keys win over merged (`<<`) ones, so merges go first; an explicit key twice is refused."""
        merged: dict[str, Any] = {}
        explicit: dict[str, Any] = {}
        for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            if key_node.tag == _MERGE:
                merged.update(self._merged(value_node, path))
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error_at(key_node.start_mark.line, "a key must be text")
            key_path = (*path, key_node.value)
            first = self.document.places.get(key_path)
            self.document.places[key_path] = self._place(key_node)
            if key_node.value in explicit:
                raise self.document.error(key_path, f"is there twice, first at {first}")
            explicit[key_node.value] = self._value(value_node, key_path)
        return {**merged, **explicit}

    def _merged(self, node: yaml.Node, path: KeyPath) -> Mapping[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                raise self._error_at(node.start_mark.line, "only a mapping can be merged")
            merged.update(self._mapping(source, path))
        return merged

    def _place(self, node: yaml.Node) -> str:
        return f"{self.document.file}:{node.start_mark.line + 1}"
