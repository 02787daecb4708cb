"""What holds under faults, as a table: `python -m tests.chaos [--short|--full] [--only A1,B3] [--seed N] [--write]`."""

import argparse
import asyncio
import os
import sys
import time
import traceback
from pathlib import Path

import pytest
import uvloop

from tests.chaos.rows import MISSED, NOT_RUN, Row, broken
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.world import FULL, SHORT, Size, World

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operations.md"
BEGIN = "<!-- chaos: begin -->"
END = "<!-- chaos: end -->"


async def run(world: World, size: Size, chosen: list[Scenario]) -> list[Row]:
    """Every scenario, one after the other; each row is printed when it is known."""
    rows: list[Row] = []
    for scenario in chosen:
        begun = time.monotonic()
        for row in await carry_out(world, size, scenario):
            rows.append(row)
            print(row.line(), flush=True)
        print(f"         ({scenario.run.__name__}: {time.monotonic() - begun:.0f} s)", flush=True)
    return rows


async def carry_out(world: World, size: Size, scenario: Scenario) -> list[Row]:
    """The rows of one scenario, also where it breaks off."""
    try:
        async with asyncio.timeout(scenario.limit_s(size)):
            return await scenario.run(world, size)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - one that breaks must not hide the others
        traceback.print_exception(error)
        words = str(error).strip().splitlines()
        await world.normal()
        return broken(scenario.ids, f"broke off: {type(error).__name__} {words[0] if words else ''}"[:160])


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


def choose(only: str) -> list[Scenario]:
    """Scenarios with a row of these names, all where none is named. Raises SystemExit on an unknown one."""
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := wanted - {row for scenario in SCENARIOS for row in scenario.ids}:
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}")
    return [scenario for scenario in SCENARIOS if not wanted or wanted & set(scenario.ids)]


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
    chosen = choose(options.only)
    begun = time.monotonic()
    with World(options.seed) as world:
        rows = uvloop.run(run(world, size, chosen))
    if options.write:
        write_table(rows, size)
    missed = [row for row in rows if row.verdict == MISSED]
    skipped = [row for row in rows if row.verdict == NOT_RUN]
    print(f"\n{len(rows)} rows in {time.monotonic() - begun:.0f} s: {len(missed)} missed, {len(skipped)} not run")
    required = os.environ.get("TURNWISE_REQUIRE") == "all"
    return 1 if missed or (skipped and required) else 0


if __name__ == "__main__":
    sys.exit(main())
