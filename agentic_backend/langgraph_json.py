"""Reads a `langgraph.json`, the file in which LangGraph's own server finds its graphs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from backend_kit.settings import SettingsError
from backend_kit.settings.source import one_line, read_env_file, read_text

_LOCAL: Final = (".", "/")


@dataclass(frozen=True, slots=True)
class ListedGraph:
    """One entry of `graphs`: its name, what to load (relative to the file's directory), and what it is for."""

    name: str
    spec: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class LanggraphJson:
    """A file's content, as far as it concerns us. Other keys, for images and servers of LangGraph, are ignored.

    `paths` are the directories among its dependencies, `env` the variables that it sets.
    """

    file: Path
    graphs: tuple[ListedGraph, ...]
    paths: tuple[Path, ...]
    env: Mapping[str, str]

    @property
    def base(self) -> Path:
        """The directory that its paths are relative to."""
        return self.file.parent


def read_langgraph_json(file: Path) -> LanggraphJson:
    """Read a file. Raises `SettingsError`, which names file and line, if it cannot be used.

    A dependency that is no directory must be an installed package; its version is not looked at.
    """
    file = file.absolute()
    return _Reader(file, read_text(file)).read()


class _Reader:
    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text

    def read(self) -> LanggraphJson:
        try:
            data = json.loads(self._text)
        except json.JSONDecodeError as error:
            raise self._refusal(error.lineno, "is not valid JSON") from None
        except RecursionError:
            raise self._refusal(1, "is nested too deeply") from None
        if not isinstance(data, dict):
            raise self._refusal(1, "must be a mapping")
        graphs = data.get("graphs")
        if not isinstance(graphs, dict) or not graphs:
            raise self._error("graphs", "must be a mapping of names to graphs")
        listed = tuple(self._graph(name, entry) for name, entry in graphs.items())
        dependencies = data.get("dependencies", [])
        if not isinstance(dependencies, list):
            raise self._error("dependencies", "must be a list")
        paths = tuple(path for entry in dependencies for path in self._dependency(entry))
        return LanggraphJson(self._file, listed, paths, self._env(data.get("env", {})))

    def _graph(self, name: str, entry: Any) -> ListedGraph:
        described = entry if isinstance(entry, dict) else {"path": entry}
        spec, description = described.get("path"), described.get("description") or ""
        if not name.strip() or not isinstance(spec, str) or not spec or not isinstance(description, str):
            raise self._error(name, "must be package.module:name or ./path/file.py:name", f"graphs.{name}")
        return ListedGraph(name, spec, description)

    def _dependency(self, entry: Any) -> Iterator[Path]:
        """The directories of a dependency, none for a package. A project with its code under `src` has that, too."""
        if not isinstance(entry, str) or not entry.strip():
            raise self._error("dependencies", "must be a list of directories and packages")
        if entry.startswith(_LOCAL):
            place = (self._file.parent / entry).resolve()
            if not place.is_dir():
                raise self._error(entry, f"{place} is no directory", "dependencies")
            yield place
            if (place / "src").is_dir():
                yield place / "src"
            return
        name = "".join(takewhile(lambda char: char.isalnum() or char in "-_.", entry.strip()))
        try:
            distribution(name)
        except (PackageNotFoundError, ValueError):
            raise self._error(entry, f"{name or entry} is not installed: pip install it", "dependencies") from None

    def _env(self, entry: Any) -> Mapping[str, str]:
        """The variables of a mapping, or of the file that is named."""
        if isinstance(entry, str):
            return {name: value for name, (value, _) in read_env_file(self._file.parent / entry).items()}
        if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
            raise self._error("env", "must be a file or a mapping of names to texts")
        return entry

    def _error(self, key: str, reason: str, path: str | None = None) -> SettingsError:
        """An error at the line on which `key` stands first."""
        offset = max(self._text.find(json.dumps(key)), 0)
        return self._refusal(self._text.count("\n", 0, offset) + 1, f"{path or key}: {reason}")

    def _refusal(self, line: int, reason: str) -> SettingsError:
        return SettingsError(one_line(f"{self._file}:{line}: {reason}"))
