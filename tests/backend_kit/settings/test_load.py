import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from pydantic import Field, JsonValue, SecretStr, Strict, ValidationError, model_validator

from backend_kit.settings import (
    Count,
    HttpUrl,
    Postgres,
    Seconds,
    Section,
    SettingsError,
    SettingsRefused,
    Text,
    config_hash,
    load,
    load_or_exit,
)
from backend_kit.settings.base import RootSection
from backend_kit.settings.load import known_keys
from backend_kit.settings.models import is_loopback
from tests.support.patience import PATIENCE_S

CANARY = "hunter2-canary"


class Item(Section):
    ignored_keys: ClassVar[tuple[str, ...]] = ("colour",)

    id: Text
    size: Count = 1


class Search(Section):
    host: HttpUrl
    password: SecretStr | None = None


class Storage(Section):
    ignored_keys: ClassVar[tuple[str, ...]] = ("*_store", "old_table")

    postgres: Postgres
    vector_store: Text = "here"
    opensearch: Search | None = None


class Sample(RootSection):
    ignored_keys: ClassVar[tuple[str, ...]] = ("scheduler",)
    env_overrides: ClassVar[dict[str, tuple[str, ...]]] = {
        "DB_PASSWORD": ("storage.postgres.password",),
        "SEARCH_PASSWORD": ("storage.opensearch.password",),
        "ENDPOINT": ("endpoint.url", "endpoint.mirror"),
    }
    env_named: ClassVar[dict[str, str]] = {"secret_env": "secret"}
    renamed_keys: ClassVar[dict[str, str]] = {"old_ratio": "ratio", "storage.patience": "endpoint.wait_s"}

    class Endpoint(Section):
        url: HttpUrl = "http://127.0.0.1:1"
        mirror: HttpUrl | None = None
        wait_s: Seconds = 2

    storage: Storage
    endpoint: Endpoint = Endpoint()
    secret_env: Text | None = None
    secret: Annotated[SecretStr, Field(min_length=8)] | None = None
    flag: bool = False
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.5
    items: Annotated[tuple[Item, ...], Strict(False)] = ()
    free: JsonValue = None


BASE = "storage:\n  postgres:\n    host: h\n    database: d\n    username: u\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "configuration.yaml"


def loaded(file: Path, text: str, env: dict[str, str] | None = None) -> Sample:
    file.write_text(text)
    return load(Sample, file, env or {})


def refusal(file: Path, text: str, env: dict[str, str] | None = None) -> str:
    """The error without the file's name, after the checks that hold for every error."""
    with pytest.raises(SettingsError) as caught:
        loaded(file, text, env)
    message = str(caught.value)
    assert "\n" not in message
    assert CANARY not in message
    assert CANARY not in repr(caught.value.__cause__)
    return message.removeprefix(f"{file}:")


def test_a_good_file_becomes_a_frozen_object(file: Path) -> None:
    settings = loaded(file, BASE + "items:\n- id: a\n- {id: b, size: 2}\nratio: 0\n")
    assert [item.id for item in settings.items] == ["a", "b"]
    assert settings.ratio == 0.0
    assert isinstance(settings.endpoint.wait_s, float)
    with pytest.raises(ValidationError):
        settings.endpoint.wait_s = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flga: true\n", '6: flga: unknown key (did you mean "flag"?)'),
        ("items:\n- id: a\n  szie: 1\n", '8: items[0].szie: unknown key (did you mean "size"?)'),
        (
            "endpoint:\n  pool_sise: 3\n",
            '7: endpoint.pool_sise: unknown key (did you mean "storage.postgres.pool_size"?)',
        ),
        ("endpoint:\n  zzzzzzz: 3\n", '7: endpoint.zzzzzzz: unknown key (did you mean "url"?)'),
        ("shceduler: 1\n", '6: shceduler: unknown key (did you mean "scheduler"?)'),
        ("1: 1\n", '6: 1: unknown key (did you mean "storage"?)'),
        (f"{{}}: {CANARY}\n", "6: a key must be text"),
        (f"flag: {CANARY}\n", "6: flag: must be true or false"),
        ("flag: 1\n", "6: flag: must be true or false"),
        (f"items: {CANARY}\n", "6: items: must be a list"),
        (f"items: [{CANARY}]\n", "6: items[0]: must be a mapping"),
        ("items:\n- id: a\n  size: true\n", "8: items[0].size: must be a whole number"),
        ("items:\n- id: a\n  size: '7'\n", "8: items[0].size: must be a whole number"),
        ("items:\n- id: a\n  size: 1.5\n", "8: items[0].size: must be a whole number"),
        ("items:\n- id: a\n  size: -1\n", "8: items[0].size: must be at least 0"),
        ("items:\n- size: 1\n", "7: items[0].id: is required"),
        ("items:\n- id: ''\n", "7: items[0].id: must have 1 characters or more"),
        ("items:\n- id: 2026-11-01\n", "7: items[0].id: must be text"),
        ("endpoint:\n", "6: endpoint: must be a mapping"),
        (f"endpoint: {CANARY}\n", "6: endpoint: must be a mapping"),
        ("endpoint:\n  wait_s: 0\n", "7: endpoint.wait_s: must be greater than 0"),
        ("endpoint:\n  wait_s: 100000\n", "7: endpoint.wait_s: must be at most 86400"),
        ("endpoint:\n  wait_s: .nan\n", "7: endpoint.wait_s: must be a finite number"),
        (f"ratio: {CANARY}\n", "6: ratio: must be a number"),
        ("ratio: 1\n", "6: ratio: must be less than 1"),
        (f"endpoint:\n  url: {CANARY}\n", "7: endpoint.url: must be an absolute http or https URL"),
        ("endpoint:\n  url: http://h:99999\n", "7: endpoint.url: must be an absolute http or https URL"),
        (
            f"endpoint:\n  url: http://u:{CANARY}@h/v1\n",
            "7: endpoint.url: must not hold credentials: they come from the environment",
        ),
        ("secret: short\n", "6: secret: must have 8 characters or more"),
        (f"secret: [{CANARY}]\n", "6: secret: must be text"),
        ("free: 2026-11-01\n", "6: free: is not valid"),
        (f"flag: true\nratio: 0\nflag: {CANARY}\n", "8: flag: is there twice, first at {file}:6"),
        (f"items:\n- id: a\n  id: {CANARY}\n", "8: items[0].id: is there twice, first at {file}:7"),
        (f"flag: [{CANARY}\nratio: 1\n", "7: is not valid YAML"),
        (f"\tflag: {CANARY}\n", "6: is not valid YAML"),
        (f"flag: *{CANARY}\n", "6: is not valid YAML"),
        (f"--- {CANARY}\n", "6: is not valid YAML"),
        (f"flag: \x07{CANARY}\n", "6: holds a character that YAML forbids"),
        (f"flag: !!python/name:os.{CANARY} ''\n", "6: flag: is not a value that YAML can read"),
        (f"flag: !!python/object:os.{CANARY} {{}}\n", "6: flag: has a YAML tag that is not known here"),
        ("free: 2026-99-99\n", "6: free: is not a value that YAML can read"),
        ("free: &a [*a]\n", "1: is nested too deeply"),
        ("free: " + "[" * 5000 + "\n", "1: is nested too deeply"),
        ("endpoint: &e\n  <<: 3\n", "7: only a mapping can be merged"),
        (f"secret_env: {CANARY}\n", "6: secret_env: names an environment variable that is not set"),
        ("secret_env: 3\n", "6: secret_env: must be text"),
        (f'"fl\\nag": {CANARY}\n', '6: fl?ag: unknown key (did you mean "flag"?)'),
    ],
)
def test_what_is_wrong_is_said_in_one_line_without_the_value(file: Path, text: str, message: str) -> None:
    assert refusal(file, BASE + text) == message.replace("{file}", str(file))


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "hunter2-canary\n", "null\n"])
def test_the_top_level_is_a_mapping(file: Path, text: str) -> None:
    assert refusal(file, text) == "1: the top level must be a mapping"


def test_a_missing_section_is_said_at_the_top(file: Path) -> None:
    assert refusal(file, "flag: true\n") == "1: storage: is required"


def test_aliases_that_multiply_are_bounded(file: Path) -> None:
    rows = ["free:", "  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert refusal(file, BASE + "\n".join(rows)).endswith(": has too many entries")


def test_merged_keys_yield_to_explicit_ones_and_keep_their_places(file: Path) -> None:
    text = BASE + "free: &base {wait_s: 3, mirror: x}\nendpoint:\n  <<: [*base, {wait_s: 9}]\n  mirror: http://m\n"
    settings = loaded(file, text)
    assert settings.endpoint.wait_s == 3.0
    assert settings.endpoint.mirror == "http://m"
    text = text.replace("mirror: x", "mirror: 4").replace("  mirror: http://m\n", "")
    assert refusal(file, text) == "6: endpoint.mirror: must be text"


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(SettingsError, match=rf"^{missing}: cannot be read: No such file or directory$"):
        load(Sample, missing, {})
    with pytest.raises(SettingsError, match=rf"^{tmp_path}: cannot be read: Is a directory$"):
        load(Sample, tmp_path, {})
    missing.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(SettingsError, match=rf"^{missing}:2: is not UTF-8 text$"):
        load(Sample, missing, {})
    missing.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load(Sample, missing, {}).storage.postgres.host == "h"


def test_the_environment_overrides_the_file(file: Path) -> None:
    settings = loaded(file, BASE + "endpoint: {url: http://a}\n", {"DB_PASSWORD": CANARY, "ENDPOINT": "http://b/v1/"})
    assert settings.storage.postgres.password is not None
    assert settings.storage.postgres.password.get_secret_value() == CANARY
    assert settings.endpoint.url == "http://b/v1"
    assert settings.endpoint.mirror == "http://b/v1"


def test_a_section_with_defaults_is_made_for_an_override_and_an_optional_one_is_not(file: Path) -> None:
    settings = loaded(file, BASE, {"ENDPOINT": "http://b", "SEARCH_PASSWORD": CANARY})
    assert settings.endpoint.url == "http://b"
    assert settings.storage.opensearch is None
    assert refusal(file, "storage: 1\n", {"DB_PASSWORD": CANARY}) == "1: storage: must be a mapping"
    assert refusal(file, "flag: true\n", {"DB_PASSWORD": CANARY}) == "1: storage: is required"


def test_an_empty_variable_is_not_set(file: Path) -> None:
    assert loaded(file, BASE + "endpoint: {url: http://a}\n", {"ENDPOINT": ""}).endpoint.url == "http://a"


def test_the_line_end_of_a_secret_that_came_from_a_file_is_none_of_it(file: Path) -> None:
    for end in ("\n", "\r\n"):
        settings = loaded(file, BASE, {"DB_PASSWORD": CANARY + end})
        assert settings.storage.postgres.password is not None
        assert settings.storage.postgres.password.get_secret_value() == CANARY
    assert loaded(file, BASE + "endpoint: {url: http://a}\n", {"ENDPOINT": "\n"}).endpoint.url == "http://a"


@pytest.mark.parametrize("value", [f"{CANARY}\nsecond line", f"{CANARY}\x1b[0m", f"\t{CANARY}"])
def test_a_variable_with_a_control_character_is_refused_by_its_name(file: Path, value: str) -> None:
    message = refusal(file, BASE, {"DB_PASSWORD": value})
    where = "environment variable DB_PASSWORD: storage.postgres.password"
    assert message == f"{where}: holds a line end or another control character"


def test_a_bad_override_names_its_variable(file: Path) -> None:
    message = refusal(file, BASE, {"ENDPOINT": CANARY})
    assert message == "environment variable ENDPOINT: endpoint.url: must be an absolute http or https URL"


def test_the_env_file_is_read_and_the_environment_wins(file: Path, tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text(
        f"# a comment\n\nexport DB_PASSWORD='{CANARY} # kept'\n"
        'ENDPOINT=http://from-file # a comment\nMY_SECRET="long enough" # x\n'
    )
    env = {"ENV_FILE": str(dotenv)}
    settings = loaded(file, BASE + "secret_env: MY_SECRET\n", env)
    assert settings.storage.postgres.password == SecretStr(f"{CANARY} # kept")
    assert settings.endpoint.url == "http://from-file"
    assert settings.secret == SecretStr("long enough")
    assert loaded(file, BASE, env | {"ENDPOINT": "http://from-env"}).endpoint.url == "http://from-env"


def test_a_bad_env_file_is_said_with_its_line(file: Path, tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    env = {"ENV_FILE": str(dotenv)}
    assert refusal(file, BASE, env) == f"{dotenv}: cannot be read: No such file or directory"
    dotenv.write_text(f"A=1\n{CANARY}\n")
    assert refusal(file, BASE, env) == f"{dotenv}:2: must be NAME=value"
    dotenv.write_text(f"A=1\nENDPOINT={CANARY}\n")
    assert refusal(file, BASE, env) == f"{dotenv}:2: endpoint.url: must be an absolute http or https URL"


def test_keys_without_effect_are_dropped_with_a_warning_each(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        BASE
        + f"  old_table: {{a: {CANARY}}}\n  tag_store: {{type: x}}\n  vector_store: v\nscheduler:\n  enabled: true\n"
        + "items:\n- id: a\n  colour: x\n- id: b\n- id: c\n  colour: y\n- id: d\n  colour: z\n"
    )
    with caplog.at_level(logging.WARNING):
        settings = loaded(file, text)
    assert settings.storage.vector_store == "v"
    assert caplog.messages == [
        f"{file}:6: storage.old_table: has no effect here",
        f"{file}:7: storage.tag_store: has no effect here",
        f"{file}:9: scheduler: has no effect here",
        f"{file}:13: items[0].colour: has no effect here, nor in lines 16, 18",
    ]


def test_a_key_of_an_older_name_is_the_one_of_today(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = loaded(file, BASE + "  patience: 3\nold_ratio: 0.25\n")
    assert (settings.ratio, settings.endpoint.wait_s) == (0.25, 3.0)
    assert not caplog.records
    assert loaded(file, BASE + "  patience: 3\nendpoint: {url: 'http://h'}\n").endpoint.url == "http://h"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("old_ratio: 7\n", "6: old_ratio: ratio: must be less than 1"),
        (f"old_ratio: {CANARY}\n", "6: old_ratio: ratio: must be a number"),
        ("ratio: 0\nold_ratio: 0\n", "7: old_ratio: is the same as ratio, which is there, too"),
        (
            "  patience: 3\nendpoint:\n  wait_s: 3\n",
            "6: storage.patience: is the same as endpoint.wait_s, which is there, too",
        ),
        ("  patience: 3\nendpoint:\n", "7: endpoint: must be a mapping"),
    ],
)
def test_a_key_of_an_older_name_is_refused_like_any(file: Path, text: str, message: str) -> None:
    assert refusal(file, BASE + text) == message


@pytest.mark.parametrize("typo", ["vetcor_store", "ector_store", "vector_stores", "vector_stor"])
def test_a_slip_in_a_known_key_is_not_taken_for_one_without_effect(file: Path, typo: str) -> None:
    assert refusal(file, BASE + f"  {typo}: v\n") == f'6: storage.{typo}: unknown key (did you mean "vector_store"?)'


def test_nothing_is_logged_for_a_file_of_today(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(file, BASE)
    assert not caplog.records


def test_secrets_are_in_no_text(file: Path) -> None:
    settings = loaded(file, BASE + f"secret: {CANARY}\n", {"DB_PASSWORD": CANARY})
    assert CANARY not in repr(settings)
    assert CANARY not in str(settings)
    assert CANARY not in settings.model_dump_json()
    dump = settings.model_dump(mode="json")
    assert dump["secret"] == dump["storage"]["postgres"]["password"] == "**********"
    assert dump["storage"]["postgres"]["host"] == "h"


def test_the_hash_changes_with_values_and_not_with_secrets(file: Path) -> None:
    plain = config_hash(loaded(file, BASE + "items: [{id: a}]\n"))
    assert len(plain) == 12
    assert plain == config_hash(loaded(file, BASE + "ratio: 0.5\nitems: [{size: 1, id: a}]\n", {"DB_PASSWORD": CANARY}))
    assert plain == config_hash(loaded(file, BASE + "items: [{id: a}]\n", {"DB_PASSWORD": "another"}))
    assert plain != config_hash(loaded(file, BASE + "items: [{id: b}]\n"))


def test_a_validator_points_at_the_key_it_is_about(file: Path) -> None:
    class Unique(RootSection):
        items: Annotated[tuple[Item, ...], Strict(False)] = ()

        @model_validator(mode="after")
        def unique(self) -> "Unique":
            if len({item.id for item in self.items}) < len(self.items):
                raise SettingsRefused("is used twice", "items", 1, "id")
            return self

    file.write_text("items:\n- id: a\n- size: 2\n  id: a\n")
    with pytest.raises(SettingsError, match=rf"^{file}:4: items\[1\].id: is used twice$"):
        load(Unique, file, {})


def test_an_error_built_by_hand_holds_no_input() -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({"flag": CANARY, "unknown": CANARY})
    assert CANARY not in str(caught.value)


def test_known_keys_walks_into_optional_and_listed_sections() -> None:
    keys = {".".join(path) for path, _ in known_keys(Sample)}
    assert {"storage.opensearch.host", "items.id", "endpoint.wait_s", "secret"} <= keys


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - nothing listens
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_what_no_other_machine_reaches(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_without_a_file_the_process_ends_with_one_line(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        load_or_exit(Sample, {})
    assert ended.value.code == 2
    assert capsys.readouterr().err == "CONFIG_FILE: is not set; it names the YAML file of the service\n"
    file.write_text(BASE)
    assert load_or_exit(Sample, {"CONFIG_FILE": str(file)}).storage.postgres.host == "h"


HEAVY = ("fastapi", "starlette", "uvicorn", "langgraph", "langchain_core", "sqlalchemy", "psycopg", "openai", "aiohttp")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("module", "name"),
    [("agentic_backend.settings", "AgenticSettings"), ("knowledge_flow_backend.settings", "KnowledgeFlowSettings")],
)
def test_a_bad_file_ends_the_start_before_anything_heavy_is_imported(file: Path, module: str, name: str) -> None:
    file.write_text(f"app:\n  prot: {CANARY}\n")
    program = f"""
import atexit, sys
atexit.register(lambda: print(sorted(set(sys.modules) & set({HEAVY!r}))))
from backend_kit.settings import load_or_exit
from {module} import {name}
load_or_exit({name})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CONFIG_FILE": str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert done.stdout == "[]\n"
    assert done.stderr == f'{file}:2: app.prot: unknown key (did you mean "port"?)\n'
