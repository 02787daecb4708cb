"""What turns ask: files, scripts of several turns, weights."""

from collections import Counter
from pathlib import Path

import pytest

from tests.ws_bench.dice import dice
from ws_bench.config.prompts import Prompts, Script, digest, read_scripts
from ws_bench.errors import UsageError


def written(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def test_without_a_file_all_ask_the_message() -> None:
    prompts = Prompts((), "Hello", dice(0))
    assert [prompts.next(client) for client in (0, 1, 0)] == ["Hello"] * 3


def test_lines_are_asked_in_order_whichever_client_comes_first(tmp_path: Path) -> None:
    scripts = read_scripts(written(tmp_path, "p.txt", "one\n\n two \nthree\n"))
    prompts = Prompts(scripts, "", dice(0))
    assert [prompts.next(client) for client in (3, 1, 3, 0)] == ["one", "two", "three", "one"]


def test_a_script_is_one_clients_from_its_first_turn_to_its_last(tmp_path: Path) -> None:
    lines = '{"turns": ["a1", "a2", "a3"]}\n"b"\n{"prompt": "c"}\n'
    prompts = Prompts(read_scripts(written(tmp_path, "p.jsonl", lines)), "", dice(0))
    assert [prompts.next(client) for client in (0, 1, 0, 1, 0, 0)] == ["a1", "b", "a2", "c", "a3", "a1"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", 'prompt,weight\n"often, that is",3\nrarely,1\n'),
        ("p.jsonl", '{"prompt": "often, that is", "weight": 3}\n{"prompt": "rarely"}\n'),
    ],
)
def test_weights_are_shares_and_the_seed_decides(tmp_path: Path, name: str, text: str) -> None:
    scripts = read_scripts(written(tmp_path, name, text))
    prompts, again = (Prompts(scripts, "", dice(5)) for _ in range(2))
    asked = [prompts.next(0) for _ in range(4000)]
    assert Counter(asked)["often, that is"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert [again.next(0) for _ in range(4000)] == asked


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.txt", "\n\n"),
        ("p.csv", "question\nwhat?\n"),
        ("p.csv", "prompt,weight\nwhat?,often\n"),
        ("p.jsonl", "{"),
        ("p.jsonl", "3"),
        ("p.jsonl", '{"turns": []}'),
        ("p.jsonl", '{"turns": ["a", 3]}'),
        ("p.jsonl", '{"prompt": "a", "weight": 0}'),
    ],
)
def test_a_file_that_cannot_be_asked_is_a_usage_error(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match="-prompts"):
        read_scripts(written(tmp_path, name, text))


def test_a_digest_tells_scripts_apart() -> None:
    one = (Script(("a", "b")),)
    assert digest(one) == digest((Script(("a", "b")),))
    assert len({digest(one), digest((Script(("a",)), Script(("b",)))), digest((Script(("a", "b"), 1.0),))}) == 3
