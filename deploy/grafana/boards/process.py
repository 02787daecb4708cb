"""Each process of both services: CPU, memory, descriptors, versions."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import tail
from deploy.grafana.promql import CHOSEN, rate, select


def process() -> Dashboard:
    """Each process, of both services."""
    return Dashboard(
        uid="turnwise-process",
        title="Turnwise / Processes",
        rows=[_resources(), _work(), _traffic(), _targets()],
        description="CPU, memory, descriptors and versions of each process of both services.",
        known_by="app_build_info",
    )


def _resources() -> Row:
    return Row(
        "Resources",
        [
            Panel(
                title="CPU",
                description="Cores in use, by process.",
                unit="short",
                targets=[Target(rate("process_cpu_seconds_total", by="job, instance"), "{{job}} {{instance}}")],
            ),
            Panel(
                title="Resident memory",
                description="By process.",
                unit="bytes",
                targets=[Target(select("process_resident_memory_bytes"), "{{job}} {{instance}}")],
            ),
            Panel(
                title="File descriptors",
                description="Open ones as a part of the limit.",
                unit="percentunit",
                bound=0.8,
                targets=[Target(f"{select('process_open_fds')} / {select('process_max_fds')}", "{{job}} {{instance}}")],
            ),
            Panel(
                title="Time in garbage collection",
                description="Share of the time that the process stood still.",
                unit="percentunit",
                targets=[Target(rate("app_gc_pause_seconds_sum", by="job, instance"), "{{job}} {{instance}}")],
            ),
        ],
    )


def _work() -> Row:
    return Row(
        "Tasks and threads",
        [
            Panel(
                title="Failures",
                description="By kind of task or thread, a minute; each is begun again, with a traceback in the log.",
                unit="short",
                targets=[
                    Target(f"60 * {rate('app_task_failures_total', by='job, instance, task')}", "{{instance}} {{task}}")
                ],
            ),
            Panel(
                title="Threads",
                description="1: it does its work. At 0 /ready says task_down.",
                unit="short",
                targets=[Target(select("app_thread_up"), "{{instance}} {{thread}}")],
            ),
        ],
    )


def _traffic() -> Row:
    return Row(
        "REST",
        [
            Panel(
                title="Requests a second",
                description="By route and status; searches have a dashboard of their own.",
                unit="reqps",
                targets=[
                    Target(
                        rate("app_http_request_seconds_count", by="route, method, status"),
                        "{{method}} {{route}} {{status}}",
                    )
                ],
            ),
            Panel(
                title="Requests p95",
                description="By route.",
                unit="s",
                targets=tail("app_http_request_seconds", "method", "route"),
            ),
        ],
    )


def _targets() -> Row:
    return Row(
        "Processes",
        [
            Panel(
                title="What runs",
                description="Version, source and configuration of each process.",
                unit="short",
                kind="table",
                targets=[Target(select("app_build_info"), "")],
            ),
            Panel(
                title="Up",
                description="1: it answered the last scrape.",
                unit="short",
                targets=[Target(f"up{{{CHOSEN}}}", "{{job}} {{instance}}")],
            ),
            Panel(
                title="Age",
                description="Time since the start.",
                unit="s",
                targets=[Target(f"time() - {select('process_start_time_seconds')}", "{{job}} {{instance}}")],
            ),
            Panel(
                title="Scrapes",
                description="How long a scrape takes.",
                unit="s",
                targets=[Target(f"scrape_duration_seconds{{{CHOSEN}}}", "{{job}} {{instance}}")],
            ),
        ],
    )
