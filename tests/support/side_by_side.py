"""Programs that check something, several at once; what each one writes stays together."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Program:
    """A command line, run from the root of the tree with `env` added to the environment; it must end with 0."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Outcome:
    name: str
    code: int
    output: str
    seconds: float


def all_good(programs: Sequence[Program]) -> bool:
    """Run each to its end, whatever fails, the first ones first, as many at once as there are cores.

    Prints each one's output as it ends, then who failed.

    One whose program is missing has failed, and so have none at all.
    """
    failed = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in as_completed([pool.submit(_run, program) for program in programs]):
            outcome = done.result()
            verdict = "ok" if outcome.code == 0 else f"FAILED ({outcome.code})"
            print(f"== {outcome.name}: {verdict}, {outcome.seconds:.0f} s", outcome.output, sep="\n", flush=True)
            if outcome.code != 0:
                failed.append(outcome.name)
    print(f"FAILED: {', '.join(failed)}" if failed else f"{len(programs)} of {len(programs)} are ok", flush=True)
    return not failed and bool(programs)


def _run(program: Program) -> _Outcome:
    begun = time.monotonic()
    try:
        done = subprocess.run(
            program.command,
            cwd=ROOT,
            env={**os.environ, **program.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        code, output = done.returncode, done.stdout.rstrip()
    except OSError as error:
        code, output = 127, str(error)
    return _Outcome(program.name, code, output, time.monotonic() - begun)
