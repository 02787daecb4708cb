"""`turnwise doctor`: whether what the configuration names is there, and as it must be; and what to do about the rest.

Each service examines what it needs in a process of its own, with the settings that it would start with. Nothing is
started, changed or kept.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

import yaml

from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.wire import dumps
from turnwise.errors import EXIT_UNUSABLE, StartRefused
from turnwise.findings import ServiceFindings, as_json, decode_findings, exit_code, sections_with, table, together
from turnwise.home import checkout, find_home, resource_directory, stored_password
from turnwise.installed import installed_findings
from turnwise.launcher import environment_of
from turnwise.plan import Plan, ServicePlan, read_configuration, read_plan, section_of
from turnwise.ports import LOOPBACK
from turnwise.run import port_of
from turnwise.supervise import last_word

EXAMINED_S: Final = 60.0
"""For all of a service, of which the start of its process takes 2 s on a quiet machine and its checks 4 s."""
_PASSWORD: Final = "FRED_POSTGRES_PASSWORD"  # noqa: S105 - the name of a variable
_AGENTIC: Final = "agentic_backend"
_KNOWLEDGE: Final = "knowledge_flow_backend"
_TITLES: Final = {_AGENTIC: "agentic", _KNOWLEDGE: "knowledge flow"}
_MOST_BYTES: Final = 1 << 20
_REAPED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Examined:
    """A service that is to be examined: its module, the file that is named and the one that it reads, and the
    environment and the directory that it would have."""

    module: str
    shown: Path
    config: Path
    environment: Mapping[str, str]
    cwd: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnwise doctor` to the parser."""
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="configuration of a service, of either or of both; default: $CONFIG_FILE, else those of `turnwise run`",
    )
    parser.add_argument("--port", metavar="N", help="as given to `turnwise run` ($PORT)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run_command(options: argparse.Namespace) -> int:
    """Print what was found. Returns 0 where everything in use is ok or slow, 1 otherwise, 2 where no file says what to
    look at."""
    try:
        with TemporaryDirectory(prefix="turnwise-doctor-") as directory:
            sections = _sections(options, Path(directory))
    except StartRefused as refused:
        print(f"turnwise: {refused}", file=sys.stderr)
        return EXIT_UNUSABLE
    print(dumps(as_json(sections)).decode() if options.json else table(sections))
    return exit_code(sections)


def _sections(options: argparse.Namespace, directory: Path) -> list[ServiceFindings]:
    named = os.environ.get("CONFIG_FILE")
    files = options.files or ([Path(named)] if named else [])
    if files:
        found = examine_services([service_of(file, os.environ) for file in files])
    else:
        base = checkout() or Path.cwd()
        config = resource_directory() / "config"
        agentic, knowledge = (config / name / "configuration.yaml" for name in ("agentic", "knowledge_flow"))
        plan = read_plan(agentic, knowledge, os.environ, bench=False, port=port_of(options.port))
        found = examine_services(services_of(plan, find_home(base, os.environ), directory, base))
        if plan.knowledge_flow is None:
            found = [without_knowledge_flow(section) for section in found]
    own = ServiceFindings("installed", "", installed_findings())
    return list(sections_with([own, *found], together(found)))


def service_of(file: Path, environ: Mapping[str, str]) -> Examined:
    """The service that a file configures, as it would be started with it. Raises `StartRefused` for a file that cannot
    be read."""
    data, known = read_configuration(file, environ)
    environment = dict(environ)
    postgres = section_of(data, "storage", "postgres")
    given = environ.get(_PASSWORD) or known.get(_PASSWORD) or postgres.get("password")
    if not given and postgres.get("host") in LOOPBACK:
        # That of `turnwise run`, which makes a password of its own and tells its services alone.
        environment |= _password(checkout() or Path.cwd(), environ)
    module = _AGENTIC if "ai" in data else _KNOWLEDGE  # which the one requires, and the other refuses
    return Examined(module, file, file.absolute(), environment, Path.cwd())


def services_of(plan: Plan, home: Path, directory: Path, base: Path) -> list[Examined]:
    """The services of `turnwise run`, as it would start them. `directory` takes files whose ports are moved."""
    environment = environment_of(plan, home)
    if plan.postgres_port is not None:
        environment |= _password(base, plan.environment)
    found = []
    for service in (plan.agentic, plan.knowledge_flow):
        if service is not None:
            config = _with_ports(service, directory)
            found.append(Examined(service.module, _shown(service.config), config, environment, base))
    return found


def examine_services(services: Sequence[Examined], within_s: float = EXAMINED_S) -> list[ServiceFindings]:
    """What each finds, in parallel, within `within_s` seconds."""
    give_up_at = time.monotonic() + within_s
    with contextlib.ExitStack() as stack:
        examinations = []
        for service in services:
            said = stack.enter_context(TemporaryFile())
            logged = stack.enter_context(TemporaryFile("w+", encoding="utf-8", errors="replace"))
            examinations.append(_Examination(service, said, logged))
            stack.callback(examinations[-1].kill)
        return [one.section(give_up_at) for one in examinations]


def without_knowledge_flow(section: ServiceFindings) -> ServiceFindings:
    """The section where knowledge flow is not installed, so that nobody can miss it."""
    what = "knowledge flow"
    missing = Diagnosis(what, Health.NOT_USED, "not installed here: agents answer without documents")
    return replace(section, findings=[missing if one.what == what else one for one in section.findings])


class _Examination:
    """The process in which a service examines itself. What it says goes to files: one that hangs in a system call can
    not be waited for by its pipes."""

    def __init__(self, service: Examined, said: IO[bytes], logged: IO[str]) -> None:
        self._service = service
        self._said = said
        self._logged = logged
        self._process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", f"{service.module}.doctor"],
            env={**service.environment, "CONFIG_FILE": str(service.config)},
            stdin=subprocess.DEVNULL,
            cwd=service.cwd,
            stdout=said,
            stderr=logged,
            start_new_session=True,
        )

    def section(self, give_up_at: float) -> ServiceFindings:
        """What it found by then, on the monotonic clock."""
        service = self._service
        return ServiceFindings(_TITLES[service.module], str(service.shown), self._findings(give_up_at))

    def _findings(self, give_up_at: float) -> list[Diagnosis]:
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0.0, give_up_at - time.monotonic()))
        self._said.seek(0)
        line = self._said.read(_MOST_BYTES)
        if not line.endswith(b"\n"):
            return [_unexamined(self._service) if code is None else _broken(self._service, code, self._logged)]
        try:
            return decode_findings(line)
        except ValueError:
            return [_broken(self._service, code or 0, self._logged)]

    def kill(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPED_S)


def _broken(service: Examined, code: int, logged: IO[str]) -> Diagnosis:
    """What it means that an examination ended without findings."""
    logged.seek(0)
    if code == EXIT_UNUSABLE:
        # One line that names the file, the line and the key, and never a value.
        return Diagnosis("configuration", Health.WRONG, "cannot be used", last_word(logged) or _by_hand(service))
    return Diagnosis("configuration", Health.WRONG, f"the examination broke off with code {code}", _by_hand(service))


def _unexamined(service: Examined) -> Diagnosis:
    return Diagnosis("configuration", Health.AWAY, f"not examined within {EXAMINED_S:g} s", _by_hand(service))


def _by_hand(service: Examined) -> str:
    return f"CONFIG_FILE={service.shown} python -m {service.module}.doctor says why"


def _with_ports(service: ServicePlan, directory: Path) -> Path:
    """The file that the service would be started with."""
    if service.content is None:
        return service.config
    file = directory / f"{service.module}.yaml"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(dict(service.content), sort_keys=False), encoding="utf-8")
    return file


def _password(base: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The password of the embedded Postgres, once it was started."""
    made = stored_password(base, environ)
    return {} if made is None else {_PASSWORD: made}


def _shown(file: Path) -> Path:
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
