"""Whether the services take their configuration, asked of themselves before anything is started."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import StartRefused
from turnwise.plan import Plan, Service
from turnwise.supervise import useful_line

CHECK_S = 60.0


def require_good_configuration(plan: Plan, cwd: Path) -> None:
    """Raise `StartRefused` with what each service has to say against its file. Blocks for a second or less."""
    services = [service for service in (plan.agentic, plan.knowledge_flow) if service is not None]
    asked = [(service, _ask(service, plan.environment, cwd)) for service in services]
    refusals = [reason for service, process in asked if (reason := _answer(service, process))]
    if refusals:
        raise StartRefused("; ".join(refusals))


def _ask(service: Service, environment: Mapping[str, str], cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-m", service.module, "--check"],
        cwd=cwd,
        env={**environment, "CONFIG_FILE": str(service.config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _answer(service: Service, process: "subprocess.Popen[str]") -> str:
    """What is wrong, in one line; empty where nothing is."""
    try:
        _, errors = process.communicate(timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{service.config}: not read within {CHECK_S:g} s"
    if process.returncode == 0:
        return ""
    return (
        useful_line(errors.splitlines())
        or f"{service.title}: python -m {service.module} ends with {process.returncode}"
    )
