"""What the agentic service looks at, in the order in which it is told."""

from importlib.metadata import version

from agentic_backend.doctor.bus import bus_check
from agentic_backend.doctor.database import database_checks, most_descriptors
from agentic_backend.doctor.instances import instances_check
from agentic_backend.doctor.knowledge import knowledge_check
from agentic_backend.doctor.models import model_checks
from agentic_backend.doctor.spool import spool_check
from agentic_backend.settings import AgenticSettings
from backend_kit.doctor.checks import Check, in_thread
from backend_kit.doctor.issuer import issuer_check
from backend_kit.doctor.itself import itself_check
from backend_kit.doctor.machine import Machine, Wanted, look_at_machine

_WORKER_MIB = 250
"""A worker with a few hundred streaming clients, without what it remembers (perf log of 2026-11-24)."""


def checks_of(settings: AgenticSettings) -> list[Check]:
    """All of them. What the service comes to use beside these is one more function here."""
    return [
        itself_check(settings.app, version("turnwise")),
        *database_checks(settings),
        spool_check(settings),
        *model_checks(settings),
        knowledge_check(settings),
        issuer_check(settings.security),
        instances_check(settings),
        bus_check(settings),
        Check("machine", in_thread(lambda: look_at_machine(wanted_of(settings), Machine.here())), "look at its load"),
    ]


def wanted_of(settings: AgenticSettings) -> Wanted:
    """What the service is configured for."""
    workers = settings.app.workers
    return Wanted(
        workers=workers,
        files=most_descriptors(settings),
        files_of="limits.max_sockets, limits.max_turns",
        memory_mib=workers * (_WORKER_MIB + settings.history.cache_mb),
    )
