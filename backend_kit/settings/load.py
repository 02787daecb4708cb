"""Loads files and environment into one frozen settings object, or into one line that says what is wrong and where."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from backend_kit.settings.base import RootSection, Section, SettingsError, SettingsRefused
from backend_kit.settings.source import KeyPath, YamlDocument, dotted, one_line, read_env_file, read_yaml
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=RootSection)

# Below _LIKE a key of another section may be meant; from _VERY_LIKE on an ignored key is a typo of a known one.
_LIKE = 0.5
_VERY_LIKE = 0.85

_REASONS = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_too_short": "must have {min_length} characters or more",
    "too_short": "must have {min_length} characters or more",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "extra_forbidden": "unknown key",
}


def load_or_exit(model: type[S], env: Mapping[str, str] | None = None) -> S:
    """The settings of the file that `CONFIG_FILE` names. If they cannot be used, writes why to stderr and exits with 2.

    Call it before anything heavy is imported.
    """
    env = os.environ if env is None else env
    try:
        return load(model, _config_file(env), env)
    except SettingsError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(2)


def load(model: type[S], config_file: Path, env: Mapping[str, str]) -> S:
    """Read `config_file`, apply the overrides of `env` and of the file that its `ENV_FILE` names, validate.

    A variable of `env` overrides the same one of the `.env` file; an empty one counts as not set, and line ends at its
    end do not count. Keys of Fred's files get our names. Those without effect here are dropped, or kept where only what
    stands beside them takes it, with a warning each. Raises `SettingsError` for a configuration that cannot be used.
    """
    document = read_yaml(config_file)
    _rename(document, model)
    ignored = list(_drop_ignored(document, document.data, model, (), model))
    variables = _variables(env)
    _apply_overrides(document, model, variables)
    _apply_named(document, model, variables)
    try:
        settings = model.model_validate(document.data)
    except ValidationError as exc:
        raise _first_error(document, exc) from None
    ignored += [path for path in settings.without_effect() if path in document.places]
    for warning in _without_effect(document, ignored):
        logger.warning("%s", warning)
    return settings


def _config_file(env: Mapping[str, str]) -> Path:
    if not env.get("CONFIG_FILE"):
        raise SettingsError("CONFIG_FILE: is not set; it names the YAML file of the service")
    return Path(env["CONFIG_FILE"])


def known_keys(model: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """Each key below `model` with its section; paths into lists have no index."""
    for name, field in model.model_fields.items():
        yield (*path, name), model
        nested = nested_section(field.annotation)
        if nested is not None:
            yield from known_keys(nested, (*path, name))


def nested_section(annotation: Any) -> type[Section] | None:
    """The section inside an annotation such as `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for found in map(nested_section, get_args(annotation)) if found is not None), None)


def config_hash(section: Section) -> str:
    """Twelve hex digits that change with every value except secrets."""
    return sha256(dumps(_without_secrets(section.model_dump()))).hexdigest()[:12]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in value]
    return None if isinstance(value, SecretStr) else value


def _variables(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Every variable that is set: name → (value, place)."""
    env_file = env.get("ENV_FILE")
    found = read_env_file(Path(env_file)) if env_file else {}
    # A file that was read into a variable leaves its last line end there, and a key with one is in no header.
    given = {name: value.rstrip("\r\n") for name, value in env.items()}
    found |= {name: (value, f"environment variable {name}") for name, value in given.items() if value}
    return {name: entry for name, entry in found.items() if entry[0]}


def _rename(document: YamlDocument, model: type[RootSection]) -> None:
    """Give the keys that are named otherwise in Fred's files the names that they have here.

    Raises `SettingsError` where the file has both.
    """
    for old, new in model.renamed_keys.items():
        path, target = tuple(old.split(".")), tuple(new.split("."))
        section = _get(document.data, path[:-1])
        if not isinstance(section, dict) or path[-1] not in section:
            continue
        beside = _get(document.data, target[:-1])
        if isinstance(beside, dict) and target[-1] in beside:
            raise document.error(path, f"is the same as {new}, which is there, too")
        _put(document, model, target, section.pop(path[-1]), f"{document.place(path)}: {old}")


def _without_effect(document: YamlDocument, ignored: list[KeyPath]) -> Iterator[str]:
    """A line for each key without effect; one of several items of a list, such as each agent's, is one key."""
    items: dict[str, list[KeyPath]] = {}
    for path in ignored:
        items.setdefault(dotted(tuple(part for part in path if isinstance(part, str))), []).append(path)
    for first, *more in items.values():
        lines = ", ".join(document.place(path).rpartition(":")[2] for path in more)
        also = f", nor in line{'s' * (len(more) > 1)} {lines}" if more else ""
        yield one_line(f"{document.place(first)}: {dotted(first)}: has no effect here{also}")


def _drop_ignored(
    document: YamlDocument, data: Any, model: type[Section], path: KeyPath, root: type[Section]
) -> Iterator[KeyPath]:
    """Drop the keys without effect and yield their paths. Raises `SettingsError` for an unknown key."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _drop_ignored(document, item, model, (*path, index), root)
    if not isinstance(data, dict):
        return
    for key in list(data):
        field = model.model_fields.get(key)
        if field is None:
            if not _has_no_effect(key, model):
                raise document.error((*path, key), f'unknown key (did you mean "{_nearest(key, model, root)}"?)')
            del data[key]
            yield (*path, key)
        elif (nested := nested_section(field.annotation)) is not None:
            yield from _drop_ignored(document, data[key], nested, (*path, key), root)


def _has_no_effect(key: str, model: type[Section]) -> bool:
    """Whether `key` is an ignored key, and not a typo of a known one."""
    if key in model.ignored_keys:
        return True
    matches = any(fnmatchcase(key, pattern) for pattern in model.ignored_keys)
    return matches and all(_likeness(key, name) < _VERY_LIKE for name in model.model_fields)


def _nearest(key: str, model: type[Section], root: type[Section]) -> str:
    """The key that was probably meant: one of this section if any is similar, else the path of the most similar one."""
    here = [*model.model_fields, *(name for name in model.ignored_keys if "*" not in name)]
    nearest = max(here, key=lambda name: _likeness(key, name), default="")
    if nearest and _likeness(key, nearest) >= _LIKE:
        return nearest
    anywhere = max((path for path, _ in known_keys(root)), key=lambda path: _likeness(key, path[-1]))
    return dotted(anywhere) if _likeness(key, anywhere[-1]) >= _LIKE or not nearest else nearest


def _likeness(typed: str, known: str) -> float:
    """Similarity of two names, 0 to 1. Swapped letters count as one typo, however short the name."""
    ratio = SequenceMatcher(None, typed.lower(), known.lower()).ratio()
    return max(ratio, 0.9) if sorted(typed.lower()) == sorted(known.lower()) else ratio


def _apply_overrides(document: YamlDocument, model: type[RootSection], variables: dict[str, tuple[str, str]]) -> None:
    for name, keys in model.env_overrides.items():
        if name not in variables:
            continue
        value, place = variables[name]
        for key in keys:
            if key in model.env_where:
                other, values = model.env_where[key]
                if _get(document.data, tuple(other.split("."))) not in values:
                    continue
            _set(document, model, tuple(key.split(".")), value, place)


def _apply_named(document: YamlDocument, model: type[RootSection], variables: dict[str, tuple[str, str]]) -> None:
    """Set a key to the value of the environment variable that another key names."""
    for naming, named in model.env_named.items():
        path = tuple(naming.split("."))
        variable = _get(document.data, path)
        if not isinstance(variable, str):
            continue
        if variable not in variables:
            raise document.error(path, "names an environment variable that is not set")
        value, place = variables[variable]
        _set(document, model, tuple(named.split(".")), value, place)


def _get(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _set(document: YamlDocument, model: type[Section], path: tuple[str, ...], value: str, place: str) -> None:
    """Set a key to what a variable holds. A section missing from the file is added if it has a default; otherwise
    nothing is set.

    Raises `SettingsError` for a value of several lines, or with another control character.
    """
    if any(char < " " or char == "\x7f" for char in value):
        raise SettingsError(one_line(f"{place}: {dotted(path)}: holds a line end or another control character"))
    _put(document, model, path, value, place)


def _put(document: YamlDocument, model: type[Section], path: tuple[str, ...], value: Any, place: str) -> None:
    """Set a key to a value that was checked, or is going to be."""
    data: Any = document.data
    section: type[Section] | None = model
    for key in path[:-1]:
        if not isinstance(data, dict) or section is None:
            return
        field = section.model_fields[key]
        if key not in data and field.get_default() is not None and not field.is_required():
            data[key] = {}
        data, section = data.get(key), nested_section(field.annotation)
    if isinstance(data, dict):
        data[path[-1]] = value
        document.places[path] = place


def _first_error(document: YamlDocument, failure: ValidationError) -> SettingsError:
    """The first failure as an error of ours: the texts of pydantic may contain the value."""
    detail = failure.errors(include_url=False, include_input=False)[0]
    refused = detail.get("ctx", {}).get("error")
    if isinstance(refused, SettingsRefused):
        return document.error((*detail["loc"], *refused.path), str(refused))
    return document.error(detail["loc"], _reason(detail))


def _reason(detail: ErrorDetails) -> str:
    """The reason without the value: the context of an error holds the violated rule, not the input."""
    rule = {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        for name, bound in detail.get("ctx", {}).items()
    }
    return _REASONS.get(detail["type"], "is not valid").format_map(rule)
