"""Deletes conversations unused for a number of days: what `history.retention_days` does, for cron."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load_or_exit

_MAX_DAYS = 36_500
_EXIT_CLOCKS = 3
_EXIT_CODES = """exit codes: 0 done, also where there was nothing to delete; 1 Postgres failed, said on stderr, and what
was deleted before stays deleted; 2 the arguments or the configuration cannot be used; 3 the clocks of this host and of
Postgres differ by more than a minute: nothing is deleted while they do; 130 interrupted. It reads the configuration of
the service (CONFIG_FILE, ENV_FILE) and may run beside it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prune once; `--help` lists the exit codes. Raises SystemExit for wrong arguments."""
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    settings = load_or_exit(AgenticSettings)
    try:
        return asyncio.run(_prune(settings, chosen.older_than, dry_run=chosen.dry_run))
    except KeyboardInterrupt:
        return 130


async def _prune(settings: AgenticSettings, days: int, *, dry_run: bool) -> int:
    # Imported here, so that a wrong argument is reported immediately: SQLAlchemy loads slowly.
    from prometheus_client import CollectorRegistry

    from agentic_backend.metrics import AgenticMetrics
    from agentic_backend.persist.clocks import ClocksDiffer
    from agentic_backend.persist.database import request_pool
    from agentic_backend.persist.retention import Pruner
    from backend_kit.db.faults import DatabaseFault, cause_of, sqlstate_of
    from backend_kit.kpi import Kpi

    registry = CollectorRegistry()
    metrics = AgenticMetrics(registry, Kpi(registry, service=settings.app.name))
    postgres = settings.storage.postgres
    pool = request_pool(postgres, metrics)  # opens one connection: nothing here runs concurrently
    pruner = Pruner(pool)
    try:
        if dry_run:
            found = await pruner.expired(days)
            oldest = f", the oldest since {found.oldest}" if found.sessions else ""
            print(f"would delete {found.sessions} sessions unused for {days} days ({found.messages} messages{oldest})")
        else:
            await pruner.prune(days)
            print(f"deleted {pruner.pruned} sessions unused for {days} days")
    except ClocksDiffer as error:
        print(f"deleted {pruner.pruned} sessions: {error}; set the one that is wrong first", file=sys.stderr)
        return _EXIT_CLOCKS
    except DatabaseFault as error:
        cause, sqlstate = cause_of(error), sqlstate_of(error)
        at = f"{postgres.host}:{postgres.port}"
        print(
            f"deleted {pruner.pruned} sessions, then Postgres at {at} failed: cause={cause} sqlstate={sqlstate}",
            file=sys.stderr,
        )
        return 1
    finally:
        await pool.aclose()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m agentic_backend.prune", description=__doc__, epilog=_EXIT_CODES)
    parser.add_argument(
        "--older-than",
        type=_days,
        required=True,
        metavar="DAYS",
        help=f"days without a turn, 1 to {_MAX_DAYS}",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    return parser


def _days(given: str) -> int:
    days = int(given)
    if not 1 <= days <= _MAX_DAYS:
        raise argparse.ArgumentTypeError(f"must be 1 to {_MAX_DAYS}")
    return days


if __name__ == "__main__":
    sys.exit(main())
