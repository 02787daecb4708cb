"""What the turns ask: one message, or scripts from a file, in file order or drawn by weight."""

import csv
import hashlib
import io
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from backend_kit.wire import InvalidJson, loads
from ws_bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Script:
    """Messages that one client asks in sequence; `weight` is its share if scripts are drawn."""

    turns: tuple[str, ...]
    weight: float | None = None


def read_scripts(path: str) -> tuple[Script, ...]:
    """The scripts of a file, by its ending. Raises `UsageError`.

    `.jsonl`: a text a line, or an object with `prompt` (text) or `turns` (list of texts) and optionally `weight`.
    `.csv`: a header with `prompt` and optionally `weight`. Anything else: a prompt a line that is not empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"-prompts: cannot read {path}") from failure
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        scripts = _of_csv(text)
    elif suffix in {".jsonl", ".ndjson"}:
        scripts = [_of_json(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    else:
        scripts = [Script((line.strip(),)) for line in text.splitlines() if line.strip()]
    if not scripts:
        raise UsageError(f"-prompts: {path} holds no message")
    return tuple(scripts)


def digest(scripts: Sequence[Script]) -> str:
    """A short hash of the scripts, which shows whether two runs asked the same."""
    return hashlib.sha256(repr([(script.turns, script.weight) for script in scripts]).encode()).hexdigest()[:12]


class Prompts:
    """Hands out messages. Without weights, scripts go in file order, cyclically, to whichever client comes next."""

    def __init__(self, scripts: Sequence[Script], message: str, random: Random) -> None:
        self._scripts = scripts
        self._message = message
        self._random = random
        self._taken = 0
        self._rest: dict[int, deque[str]] = {}
        weighted = any(script.weight is not None for script in scripts)
        self._weights = [1.0 if s.weight is None else s.weight for s in scripts] if weighted else None

    def next(self, client: int) -> str:
        """The next message of this client: from the rest of its script, then from another one."""
        if not self._scripts:
            return self._message
        rest = self._rest.get(client)
        if not rest:
            rest = self._rest[client] = deque(self._script().turns)
        return rest.popleft()

    def _script(self) -> Script:
        if self._weights is not None:
            return self._random.choices(self._scripts, self._weights)[0]
        script = self._scripts[self._taken % len(self._scripts)]
        self._taken += 1
        return script


def _of_json(number: int, line: str) -> Script:
    try:
        entry = loads(line)
    except InvalidJson as failure:
        raise UsageError(f"-prompts: line {number} is not JSON") from failure
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise UsageError(f"-prompts: line {number} is neither a text nor an object")
    turns = entry.get("turns", [entry.get("prompt")])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UsageError(f"-prompts: line {number} needs `prompt` or `turns`")
    return Script(tuple(turns), _weight(number, entry.get("weight")))


def _of_csv(text: str) -> list[Script]:
    rows = csv.DictReader(io.StringIO(text))
    if "prompt" not in (rows.fieldnames or ()):
        raise UsageError("-prompts: the CSV file needs a header with `prompt`")
    return [
        Script((row["prompt"],), _weight(number, row.get("weight") or None))
        for number, row in enumerate(rows, 2)
        if row["prompt"]
    ]


def _weight(number: int, given: object) -> float | None:
    if given is None:
        return None
    try:
        weight = float(str(given))
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise UsageError(f"-prompts: line {number}: a weight is a number above 0")
    return weight
