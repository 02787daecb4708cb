"""Each process of both services: CPU, memory, descriptors, versions."""

from deploy.grafana.model import Dashboard, Panel, Row, Target, tail
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
                "CPU",
                "Cores in use, by process.",
                "short",
                [Target(rate("process_cpu_seconds_total", by="job, instance"), "{{job}} {{instance}}")],
            ),
            Panel(
                "Resident memory",
                "By process.",
                "bytes",
                [Target(select("process_resident_memory_bytes"), "{{job}} {{instance}}")],
            ),
            Panel(
                "File descriptors",
                "Open ones as a part of the limit.",
                "percentunit",
                [Target(f"{select('process_open_fds')} / {select('process_max_fds')}", "{{job}} {{instance}}")],
                bound=0.8,
            ),
            Panel(
                "Time in garbage collection",
                "Share of the time that the process stood still.",
                "percentunit",
                [Target(rate("app_gc_pause_seconds_sum", by="job, instance"), "{{job}} {{instance}}")],
            ),
        ],
    )


def _work() -> Row:
    return Row(
        "Tasks and threads",
        [
            Panel(
                "Failures",
                "By kind of task or thread, a minute; each is begun again, with a traceback in the log.",
                "short",
                [Target(f"60 * {rate('app_task_failures_total', by='job, instance, task')}", "{{instance}} {{task}}")],
            ),
            Panel(
                "Threads",
                "1: it does its work. At 0 /ready says task_down.",
                "short",
                [Target(select("app_thread_up"), "{{instance}} {{thread}}")],
            ),
        ],
    )


def _traffic() -> Row:
    return Row(
        "REST",
        [
            Panel(
                "Requests a second",
                "By route and status; searches have a dashboard of their own.",
                "reqps",
                [
                    Target(
                        rate("app_http_request_seconds_count", by="route, method, status"),
                        "{{method}} {{route}} {{status}}",
                    )
                ],
            ),
            Panel("Requests p95", "By route.", "s", tail("app_http_request_seconds", "method", "route")),
            Panel("Connections", "Open ones.", "short", [Target(select("app_connections"), "{{instance}}")]),
            Panel(
                "Connections refused",
                "Refused or ended, by the bound; the log names a client of each once a minute.",
                "ops",
                [Target(rate("app_connections_refused_total", by="reason"), "{{reason}}")],
                quiet="none is refused",
            ),
        ],
    )


def _targets() -> Row:
    return Row(
        "Processes",
        [
            Panel(
                "What runs",
                "Version, source and configuration of each process.",
                "short",
                [Target(select("app_build_info"), "")],
                kind="table",
            ),
            Panel(
                "Up", "1: it answered the last scrape.", "short", [Target(f"up{{{CHOSEN}}}", "{{job}} {{instance}}")]
            ),
            Panel(
                "Age",
                "Time since the start.",
                "s",
                [Target(f"time() - {select('process_start_time_seconds')}", "{{job}} {{instance}}")],
            ),
            Panel(
                "Scrapes",
                "How long a scrape takes.",
                "s",
                [Target(f"scrape_duration_seconds{{{CHOSEN}}}", "{{job}} {{instance}}")],
            ),
        ],
    )
