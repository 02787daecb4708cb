"""Every slip of the pen in every key of a service, and what is said about it."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from backend_kit.settings import Section, SettingsError, load
from backend_kit.settings.base import RootSection
from backend_kit.settings.load import known_keys


def typos(name: str) -> Iterator[str]:
    """Each swap of neighbours and each dropped letter, a doubled one, capitals, dashes; never `name` itself."""
    yield name[0] + name
    yield name.upper()
    for at in range(len(name)):
        yield name[:at] + name[at + 1 :]
        if at and name[at - 1] != name[at]:
            yield name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]
    if "_" in name:
        yield name.replace("_", "-")
        yield name.replace("_", "")


def refusals(model: type[RootSection], directory: Path) -> list[str]:
    """What is wrong with how the typos of every key are refused, one line each; empty when all is right."""
    wrong: list[str] = []
    tried = 0
    known = list(known_keys(model))
    lists = {path for path, section in known if "tuple[" in str(section.model_fields[path[-1]].annotation)}
    for path, section in known:
        for typo in typos(path[-1]):
            if not typo or typo in section.model_fields:
                continue
            tried += 1
            wrong += _refusal(model, directory / "typo.yaml", path, typo, section, lists)
    assert tried > 1000
    return wrong


def _refusal(
    model: type[RootSection],
    file: Path,
    path: tuple[str, ...],
    typo: str,
    section: type[Section],
    lists: set[tuple[str, ...]],
) -> list[str]:
    """`lists` are the keys that hold a list of sections."""
    document: object = {typo: None}
    shown = ""
    for depth in range(len(path) - 1, 0, -1):
        inner = [document] if path[:depth] in lists else document
        document = {path[depth - 1]: inner}
    for depth, name in enumerate(path[:-1], start=1):
        shown += f"{name}[0]." if path[:depth] in lists else f"{name}."
    text = yaml.dump(document, Dumper=yaml.CSafeDumper)
    file.write_text(text)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if re.match(rf"[- ]*{re.escape(typo)}:", row))
    expected = f'{file}:{line}: {shown}{typo}: unknown key (did you mean "{path[-1]}"?)'
    try:
        load(model, file, {})
    except SettingsError as exc:
        return [] if str(exc) == expected else [f"{section.__name__}: {exc} instead of {expected}"]
    return [f"{section.__name__}: {typo} was accepted for {path[-1]}"]


def typos_in_file(model: type[RootSection], original: Path, directory: Path, env: dict[str, str]) -> list[str]:
    """The same for the file as it is: one swap in each key that stands in it, with its own line."""
    wrong: list[str] = []
    rows = original.read_text().splitlines()
    copy = directory / original.name
    for index, row in enumerate(rows):
        found = re.match(r"^([- ]*)([a-z0-9_]{2,}):(?= |$)", row)
        if found is None:
            continue
        name = found[2]
        typo = name[1] + name[0] + name[2:]
        if typo == name:
            typo = name[:-1]
        copy.write_text("\n".join([*rows[:index], found[1] + typo + row[found.end(2) :], *rows[index + 1 :]]))
        try:
            load(model, copy, env)
            wrong.append(f"{original}:{index + 1}: accepted")
        except SettingsError as exc:
            if not re.fullmatch(
                rf'{re.escape(str(copy))}:{index + 1}: \S*{typo}: unknown key \(did you mean "{name}"\?\)', str(exc)
            ):
                wrong.append(str(exc))
    return wrong
