"""What holds under faults, as a table: `python -m tests.chaos [--short|--full] [--only A1,B3] [--seed N] [--write]`."""

import argparse
import asyncio
import os
import sys
import time
import traceback
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from tests.chaos.deployment import FULL, SHORT, Deployment, Size
from tests.chaos.rows import MISSED, NOT_RUN, Row, broken
from tests.chaos.scenarios import KINDS, SCENARIOS, Scenario
from tests.support.processes import ForkedModule, ModuleProcess

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operations.md"
BEGIN = "<!-- chaos: begin -->"
END = "<!-- chaos: end -->"


async def run(seed: int, size: Size, chosen: list[Scenario]) -> list[Row]:
    """Every scenario, in the table's order: those that run alone first, then a lane for each that may run at once."""
    found: dict[Scenario, list[Row]] = {}

    async def lane(deployment: Deployment, waiting: deque[Scenario]) -> None:
        while waiting:
            scenario = waiting.popleft()
            begun = time.monotonic()
            rows = found[scenario] = await carry_out(deployment, size, scenario)
            told = "".join(f"{row.line()}\n" for row in rows)
            print(f"{told}         ({scenario.run.__name__}: {time.monotonic() - begun:.0f} s)", flush=True)

    deployments: list[Deployment] = []
    with ExitStack() as stack:
        for kind in KINDS:
            of_kind = [scenario for scenario in chosen if scenario.kind is kind]
            waiting = deque(sorted(of_kind, key=lambda scenario: -scenario.about_s))
            lanes = min(size.pick(kind.short, kind.full), len(waiting))
            new = [Deployment(seed) for _ in range(lanes - len(deployments))]
            deployments += await asyncio.gather(
                *(asyncio.to_thread(stack.enter_context, deployment) for deployment in new)
            )
            async with asyncio.TaskGroup() as group:
                for deployment in deployments[:lanes]:
                    group.create_task(lane(deployment, waiting))
    return [row for scenario in chosen for row in found[scenario]]


async def carry_out(deployment: Deployment, size: Size, scenario: Scenario) -> list[Row]:
    """The rows of one scenario, also where it breaks off.

    In the short form services come without the seconds of their imports, unless it is they that are judged.
    """
    forked = size.short and not scenario.as_users_start
    deployment.program = ForkedModule if forked else ModuleProcess
    try:
        async with asyncio.timeout(size.pick(600, 2400)):  # only what hangs takes so long
            return await scenario.run(deployment, size)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one that breaks must not hide the others
        traceback.print_exception(error)
        await deployment.normal()
        return broken(scenario.ids, f"broke off: {_words(error)}")


def _words(error: BaseException) -> str:
    """What went wrong, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first, *_ = [*str(error).strip().splitlines(), ""]
    return f"{type(error).__name__} {first}"[:160].strip()


def write_table(rows: list[Row], size: Size, page: Path = PAGE) -> None:
    """Put the table between the marks of the page."""
    text = page.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    form = "short" if size.short else "full"
    command = "make chaos" if size.short else "make chaos-full"
    table = [
        f"`{command}`, {os.cpu_count()} cores, {form} form:",
        "",
        "| row | what | figure | bound | verdict |",
        "|---|---|---|---|---|",
        *(row.cells() for row in rows),
    ]
    page.write_text(f"{head}{BEGIN}\n{chr(10).join(table)}\n{END}{tail}")


def choose(only: str, size: Size) -> list[Scenario]:
    """Scenarios with a row of these names; those of this form where none is named. Raises SystemExit on an unknown
    one."""
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := wanted - {row for scenario in SCENARIOS for row in scenario.ids}:
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}")
    if wanted:
        return [scenario for scenario in SCENARIOS if wanted & set(scenario.ids)]
    return [scenario for scenario in SCENARIOS if scenario.in_short or not size.short]


def main() -> int:
    """1 where a bound is missed, or a row could not be run although everything is required to."""
    parser = argparse.ArgumentParser(description="Break things under load and compare what clients were told.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="the form of .ci/run (default)")
    form.add_argument("--full", action="store_true", help="with repeats and the bounds as published")
    parser.add_argument("--only", default="", help="rows to run, such as A1,B3")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments at which faults come")
    parser.add_argument("--write", action="store_true", help="put the table into docs/operations.md")
    options = parser.parse_args()
    size = FULL if options.full else SHORT
    chosen = choose(options.only, size)
    begun = time.monotonic()
    rows = uvloop.run(run(options.seed, size, chosen))
    if options.write:
        write_table(rows, size)
    missed = [row for row in rows if row.verdict == MISSED]
    skipped = [row for row in rows if row.verdict == NOT_RUN]
    for row in [*missed, *skipped]:  # once more, where nobody has to look for it among the others
        print(f"\n{row.line()}", end="")
    print(f"\n{len(rows)} rows in {time.monotonic() - begun:.0f} s: {len(missed)} missed, {len(skipped)} not run")
    required = os.environ.get("TURNWISE_REQUIRE") == "all"
    return 1 if missed or (skipped and required) else 0


if __name__ == "__main__":
    sys.exit(main())
