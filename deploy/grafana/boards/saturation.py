"""What is full: the loop, slots, pools, Postgres, the spool, readers."""

from deploy.grafana.model import AUDIT, CONNECTIONS_OPENED, TURNS, Dashboard, Panel, Row, Target, percentiles, tail
from deploy.grafana.promql import OF_ALL, level, mean, quantile, rate, select

_PROCESS = "{{instance}} {{worker}}"
"""One process; only services of several workers have the second label."""


def saturation() -> Dashboard:
    """What is full, and who the service itself says it waits for."""
    return Dashboard(
        uid="turnwise-saturation",
        title="Turnwise / Saturation",
        rows=[_verdict(), _loop(), _waiting(), _database(), _to_postgres(), _fleet(), _trouble()],
        description="What is full: the loop, slots, pools, Postgres, the spool, readers.",
        known_by="app_turns_in_progress",
    )


def _verdict() -> Row:
    return Row(
        "Verdict",
        [
            Panel(
                "Who bounds the service",
                "The cause that the service names itself, 1 while it holds; the log says why.",
                "short",
                [Target(f"max by (cause) ({select('app_bound_by')})", "{{cause}}")],
                stacked=True,
            ),
            Panel(
                "Time of a turn by cause",
                "What the verdict is made of, for the mean turn.",
                "s",
                [
                    Target(
                        f"{rate('app_turn_wait_seconds_total', by='cause')} / ignoring(cause) group_left() {TURNS}",
                        "{{cause}}",
                    )
                ],
                stacked=True,
            ),
            Panel(
                "In use of what an instance can do",
                "The larger of its loop and its slots. At 1 more load only waits; whether more instances help says the "
                "verdict.",
                "percentunit",
                [
                    Target(select("app_turns_capacity_ratio"), _PROCESS),
                    Target(f"max(job:app_turns_capacity_ratio:to_scale{{{OF_ALL}}})", "to scale by, at 0.7"),
                ],
                bound=1,
            ),
        ],
    )


def _loop() -> Row:
    return Row(
        "Event loop",
        [
            Panel(
                "Loop lag p99",
                "How late the loop is, 25 samples a second from a thread.",
                "s",
                tail("app_event_loop_lag_seconds", "instance", q=0.99),
                bound=0.1,
            ),
            Panel(
                "Loop busy",
                "CPU share of the loop's thread: near 1 a core is used up.",
                "percentunit",
                [Target(select("app_event_loop_busy_ratio"), "{{instance}}")],
                bound=0.9,
            ),
            Panel(
                "Starved",
                "Share of the time in which the loop wanted a core: others had it, or a quota withheld it.",
                "percentunit",
                [
                    Target(rate("app_cpu_starved_seconds_total", by="instance, kind"), "{{instance}} {{kind}}"),
                    Target(rate("app_cpu_pressure_seconds_total", by="instance"), "{{instance}} any of its machine"),
                ],
                bound=0.2,
                quiet="it has a core whenever it wants one",
            ),
            Panel(
                "Stalls a minute",
                "Times the loop was late by more than 100 ms; the log names the stack.",
                "short",
                [Target(f"60 * {rate('app_event_loop_stalls_total', by='instance')}", "{{instance}}")],
                quiet="the loop is never late",
            ),
            Panel(
                "Pauses by garbage collection p99",
                "They stop the loop too.",
                "s",
                tail("app_gc_pause_seconds", "instance", q=0.99),
                quiet="it seldom collects",
            ),
            Panel(
                "How long texts gather",
                "How long a stream waits before it reads on: 0 while the loop has time.",
                "s",
                [Target(select("app_stream_hold_seconds"), "{{instance}}")],
            ),
            Panel(
                "Fragments of an answer",
                "Deltas of a turn: fewer and longer ones while texts gather.",
                "short",
                [
                    Target(mean("app_turn_deltas"), "mean"),
                    Target(quantile(0.95, "app_turn_deltas"), "p95"),
                ],
            ),
        ],
    )


def _waiting() -> Row:
    return Row(
        "Turns and sockets",
        [
            Panel(
                "Turns",
                "That hold a slot of limits.max_turns, and that wait for one.",
                "short",
                [
                    Target(level("app_turns_in_progress"), "in progress"),
                    Target(level("app_turns_queued"), "queued"),
                ],
            ),
            Panel("Wait for a slot", "From the ask to a slot.", "s", percentiles("app_admission_wait_seconds")),
            Panel("Open sockets", "Chat sockets.", "short", [Target(level("app_ws_connections"), "sockets")]),
            Panel(
                "Turned away by a limit",
                "Sockets, asks and frames. Many of one user or address: somebody floods.",
                "ops",
                [Target(rate("app_limit_hits_total", by="limit"), "{{limit}}")],
                quiet="nobody is turned away",
            ),
            Panel(
                "Requests that wait for admission",
                "By what they cost. Those of one user wait for each other; of many: too few places.",
                "short",
                [Target(level("app_requests_waiting", by="cost"), "{{cost}}")],
                quiet="nobody waits",
            ),
            Panel(
                "Requests not admitted",
                "Too many of one user, or of all, waited or came.",
                "ops",
                [Target(rate("app_requests_refused_total", by="cost, bound"), "{{cost}} {{bound}}")],
                quiet="everything is admitted",
            ),
            Panel("Longest send of a turn", "High: clients do not read.", "s", percentiles("app_ws_send_seconds")),
            Panel(
                "Bytes that wait for clients",
                "In outboxes, and kept for clients that resume.",
                "bytes",
                [
                    Target(level("app_outbox_bytes"), "outboxes"),
                    Target(level("app_replay_bytes"), "kept for resume"),
                ],
            ),
            Panel(
                "Wait for an HTTP connection p95",
                "By calls that had to wait: llm and kf.",
                "s",
                tail("app_http_pool_wait_seconds", "pool"),
                quiet="no call had to wait",
            ),
        ],
    )


def _database() -> Row:
    return Row(
        "Postgres",
        [
            Panel(
                "Wait for a connection p95",
                "By pool. A late loop reads as a wait too.",
                "s",
                tail("app_db_pool_wait_seconds", "pool"),
                bound=0.1,
            ),
            Panel(
                "Connections",
                "By pool and state; those above pool_size are among them.",
                "short",
                [Target(level("app_db_pool_connections", 'state!="overflow"', by="pool, state"), "{{pool}} {{state}}")],
                stacked=True,
            ),
            Panel(
                "Waiting for a connection",
                "Right now, by pool.",
                "short",
                [Target(level("app_db_pool_waiting", by="pool"), "{{pool}}")],
            ),
            Panel(
                "Statements p95",
                "By statement; commit is one of its own.",
                "s",
                tail("app_db_statement_seconds", "pool", "op"),
            ),
            Panel(
                "Statements a second",
                "By statement.",
                "ops",
                [Target(rate("app_db_statement_seconds_count", by="pool, op"), "{{pool}} {{op}}")],
            ),
            CONNECTIONS_OPENED,
            AUDIT,
            Panel(
                "Records a transaction",
                "The mean batch: it grows when Postgres is slow.",
                "short",
                [Target(mean("app_persist_batch_records"), "records")],
            ),
        ],
    )


def _to_postgres() -> Row:
    return Row(
        "From final to Postgres",
        [
            Panel(
                "Records that wait for Postgres",
                "Finished turns, and records in the spool (those of running turns included).",
                "short",
                [
                    Target(level("app_persist_queue_depth"), "waiting"),
                    Target(level("app_spool_records"), "in the spool"),
                ],
            ),
            Panel(
                "Age of the oldest",
                "Rises without end: Postgres is away or too slow.",
                "s",
                [Target(select("app_persist_oldest_seconds"), "{{instance}}")],
                bound=30,
            ),
            Panel("Lag", "From final to the commit of its rows.", "s", percentiles("app_persist_lag_seconds")),
            Panel(
                "Spool p95",
                "`final` waits until its record is acknowledged: for the flush that is under way, and one of its own.",
                "s",
                [
                    Target(quantile(0.95, "app_spool_ack_seconds"), "acknowledged"),
                    Target(quantile(0.95, "app_db_ack_seconds"), "by Postgres (ack: db)"),
                    Target(quantile(0.95, "app_spool_commit_seconds"), "one flush"),
                ],
            ),
            Panel(
                "Size of the spool", "All of its files.", "bytes", [Target(select("app_spool_bytes"), "{{instance}}")]
            ),
            Panel(
                "Size of the history",
                "Tables in Postgres, indexes included.",
                "bytes",
                [Target(select("app_history_bytes"), "{{table}}")],
            ),
            Panel(
                "Clock difference",
                "By how much a host is ahead of Postgres: above a minute nothing is deleted for its age.",
                "s",
                [Target(select("app_clock_difference_seconds"), "{{instance}}")],
                bound=60,
            ),
            Panel(
                "Spans of traces a second",
                "Sent to the OTLP endpoint, and dropped: an endpoint that is slow or not there costs traces, no turn.",
                "short",
                [
                    Target(rate("app_trace_spans_sent_total", by="job"), "sent"),
                    Target(rate("app_trace_spans_dropped_total", by="reason"), "dropped: {{reason}}"),
                ],
                quiet="without an endpoint for traces there are none",
            ),
        ],
    )


def _fleet() -> Row:
    alone = "with replicas: single there is no fleet"
    return Row(
        "Fleet",
        [
            Panel(
                "Instances alive",
                "That have renewed lately, as each of them sees it: they should agree.",
                "short",
                [Target(select("app_fleet_instances"), _PROCESS)],
                quiet=alone,
            ),
            Panel(
                "Turns by instance",
                "In progress at each: what a balancer, or the kernel among workers, gives them.",
                "short",
                [Target(select("app_turns_in_progress"), _PROCESS)],
                stacked=True,
            ),
            Panel(
                "Turns passed on",
                "To other instances, which follow them for a client.",
                "short",
                [Target(select("app_fleet_relayed_turns"), _PROCESS)],
                quiet=alone,
            ),
            Panel(
                "Turns mirrored",
                "From other instances: a client came back to this one.",
                "short",
                [Target(select("app_fleet_mirrored_turns"), _PROCESS)],
                quiet=alone,
            ),
            Panel(
                "Turns taken over",
                "By each, of others that died.",
                "short",
                [Target(select("app_fleet_takeovers_total"), _PROCESS)],
                quiet="no instance died",
            ),
            Panel(
                "From the last sign of life to the takeover",
                "An instance is dead after 10 s of silence.",
                "s",
                percentiles("app_fleet_takeover_seconds"),
                bound=12,
                quiet="no instance died",
            ),
            *_bus(),
        ],
    )


def _bus() -> list[Panel]:
    return [
        Panel(
            "Messages to other instances",
            "Stops, deleted and changed sessions, by what has carried them: Postgres what Redis did not deliver.",
            "ops",
            [Target(rate("app_fleet_messages_total", by="bus"), "{{bus}}")],
            quiet="with replicas: single there is no fleet",
        ),
        Panel(
            "Redis: a word until it is heard",
            "Every 2 s each instance says one to itself; after 5 s without one Redis is away for it.",
            "s",
            percentiles("app_fleet_bus_seconds"),
            bound=1,
            quiet="with fleet.bus: postgres nothing goes by Redis",
        ),
    ]


def _trouble() -> Row:
    return Row(
        "What must not happen to records",
        [
            Panel(
                "Fill",
                "What waits for Postgres, as a part of its bound: at 1 new turns are refused.",
                "percentunit",
                [Target(select("app_persist_fill_ratio"), "{{instance}}")],
                bound=0.8,
                quiet="next to nothing waits",
            ),
            Panel(
                "Tried again, a second",
                "Transactions, by cause.",
                "ops",
                [Target(rate("app_persist_retries_total", by="cause"), "{{cause}}")],
                quiet="Postgres is well",
            ),
            Panel(
                "Replayed, run again",
                "Records that an earlier process had left in the spool; turns of it that were run again.",
                "short",
                [
                    Target(select("app_persist_replayed_total"), "records: {{instance}}"),
                    Target(select("app_turns_restarted_total"), "turns: {{instance}}"),
                ],
                quiet="the last end was in order",
            ),
            Panel(
                "Lost, put aside, in conflict",
                "Must stay at 0.",
                "short",
                [
                    Target(level("app_persist_failures_total", by="reason"), "lost: {{reason}}"),
                    Target(level("app_spool_dead_letters"), "dead letters kept"),
                    Target(level("app_spool_damaged_frames_total"), "damaged frames of the spool's log"),
                    Target(level("app_rank_conflicts_total"), "rank conflicts"),
                ],
                quiet="nothing is lost",
            ),
        ],
    )
