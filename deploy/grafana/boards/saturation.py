"""What is full: the loop, slots, pools, Postgres, the spool, readers."""

from deploy.grafana.model import Dashboard, Panel, Row, Target
from deploy.grafana.parts import TURNS, percentiles, tail
from deploy.grafana.promql import level, mean, quantile, rate, select


def saturation() -> Dashboard:
    """What is full, and who the service itself says it waits for."""
    return Dashboard(
        uid="turnwise-saturation",
        title="Turnwise / Saturation",
        rows=[_verdict(), _loop(), _waiting(), _database(), _to_postgres(), _trouble()],
        description="What is full: the loop, slots, pools, Postgres, the spool, readers.",
        known_by="app_turns_in_progress",
    )


def _verdict() -> Row:
    return Row(
        "Verdict",
        [
            Panel(
                title="Who bounds the service",
                description="The cause that the service names itself, 1 while it holds; the log says why.",
                unit="short",
                stacked=True,
                targets=[Target(f"max by (cause) ({select('app_bound_by')})", "{{cause}}")],
            ),
            Panel(
                title="Time of a turn by cause",
                description="What the verdict is made of, for the mean turn.",
                unit="s",
                stacked=True,
                targets=[
                    Target(
                        f"{rate('app_turn_wait_seconds_total', by='cause')} / ignoring(cause) group_left() {TURNS}",
                        "{{cause}}",
                    )
                ],
            ),
        ],
    )


def _loop() -> Row:
    return Row(
        "Event loop",
        [
            Panel(
                title="Loop lag p99",
                description="How late the loop is, 25 samples a second from a thread.",
                unit="s",
                bound=0.1,
                targets=tail("app_event_loop_lag_seconds", "instance", q=0.99),
            ),
            Panel(
                title="Loop busy",
                description="CPU share of the loop's thread: near 1 a core is used up.",
                unit="percentunit",
                bound=0.9,
                targets=[Target(select("app_event_loop_busy_ratio"), "{{instance}}")],
            ),
            Panel(
                title="Stalls a minute",
                description="Times the loop was late by more than 100 ms; the log names the stack.",
                unit="short",
                targets=[Target(f"60 * {rate('app_event_loop_stalls_total', by='instance')}", "{{instance}}")],
                quiet="the loop is never late",
            ),
            Panel(
                title="Pauses by garbage collection p99",
                description="They stop the loop too.",
                unit="s",
                targets=tail("app_gc_pause_seconds", "instance", q=0.99),
                quiet="it seldom collects",
            ),
        ],
    )


def _waiting() -> Row:
    return Row(
        "Turns and sockets",
        [
            Panel(
                title="Turns",
                description="That hold a slot of limits.max_turns, and that wait for one.",
                unit="short",
                targets=[
                    Target(level("app_turns_in_progress"), "in progress"),
                    Target(level("app_turns_queued"), "queued"),
                ],
            ),
            Panel(
                title="Wait for a slot",
                description="From the ask to a slot.",
                unit="s",
                targets=percentiles("app_admission_wait_seconds"),
            ),
            Panel(
                title="Open sockets",
                description="Chat sockets.",
                unit="short",
                targets=[Target(level("app_ws_connections"), "sockets")],
            ),
            Panel(
                title="Turned away by a limit",
                description="Sockets, asks and frames. Many of one user or address: somebody floods.",
                unit="ops",
                targets=[Target(rate("app_limit_hits_total", by="limit"), "{{limit}}")],
                quiet="nobody is turned away",
            ),
            Panel(
                title="Longest send of a turn",
                description="High: clients do not read.",
                unit="s",
                targets=percentiles("app_ws_send_seconds"),
            ),
            Panel(
                title="Bytes that wait for clients",
                description="In outboxes, and kept for clients that resume.",
                unit="bytes",
                targets=[
                    Target(level("app_outbox_bytes"), "outboxes"),
                    Target(level("app_replay_bytes"), "kept for resume"),
                ],
            ),
            Panel(
                title="Wait for an HTTP connection p95",
                description="By calls that had to wait: llm and kf.",
                unit="s",
                targets=tail("app_http_pool_wait_seconds", "pool"),
                quiet="no call had to wait",
            ),
        ],
    )


def _database() -> Row:
    return Row(
        "Postgres",
        [
            Panel(
                title="Wait for a connection p95",
                description="By pool. A late loop reads as a wait too.",
                unit="s",
                bound=0.1,
                targets=tail("app_db_pool_wait_seconds", "pool"),
            ),
            Panel(
                title="Connections",
                description="By pool and state; those above pool_size are among them.",
                unit="short",
                stacked=True,
                targets=[
                    Target(
                        level("app_db_pool_connections", 'state!="overflow"', by="pool, state"), "{{pool}} {{state}}"
                    )
                ],
            ),
            Panel(
                title="Waiting for a connection",
                description="Right now, by pool.",
                unit="short",
                targets=[Target(level("app_db_pool_waiting", by="pool"), "{{pool}}")],
            ),
            Panel(
                title="Statements p95",
                description="By statement; commit is one of its own.",
                unit="s",
                targets=tail("app_db_statement_seconds", "pool", "op"),
            ),
            Panel(
                title="Statements a second",
                description="By statement.",
                unit="ops",
                targets=[Target(rate("app_db_statement_seconds_count", by="pool, op"), "{{pool}} {{op}}")],
            ),
            Panel(
                title="Connections opened a second",
                description="More than now and then: the pool is too small, or connections break.",
                unit="ops",
                targets=[Target(rate("app_db_connections_opened_total", by="pool"), "{{pool}}")],
            ),
            Panel(
                title="Records a transaction",
                description="The mean batch: it grows when Postgres is slow.",
                unit="short",
                targets=[Target(mean("app_persist_batch_records"), "records")],
            ),
        ],
    )


def _to_postgres() -> Row:
    return Row(
        "From final to Postgres",
        [
            Panel(
                title="Records that wait for Postgres",
                description="Finished turns, and records in the spool (those of running turns included).",
                unit="short",
                targets=[
                    Target(level("app_persist_queue_depth"), "waiting"),
                    Target(level("app_spool_records"), "in the spool"),
                ],
            ),
            Panel(
                title="Age of the oldest",
                description="Rises without end: Postgres is away or too slow.",
                unit="s",
                bound=30,
                targets=[Target(select("app_persist_oldest_seconds"), "{{instance}}")],
            ),
            Panel(
                title="Lag",
                description="From final to the commit of its rows.",
                unit="s",
                targets=percentiles("app_persist_lag_seconds"),
            ),
            Panel(
                title="Spool p95",
                description="`final` waits until its record is acknowledged; the commits are the disk's part.",
                unit="s",
                targets=[
                    Target(quantile(0.95, "app_spool_ack_seconds"), "acknowledged"),
                    Target(quantile(0.95, "app_spool_commit_seconds"), "commit"),
                ],
            ),
            Panel(
                title="Size of the spool",
                description="Bytes of its file.",
                unit="bytes",
                targets=[Target(select("app_spool_bytes"), "{{instance}}")],
            ),
            Panel(
                title="Size of the history",
                description="Tables in Postgres, indexes included.",
                unit="bytes",
                targets=[Target(select("app_history_bytes"), "{{table}}")],
            ),
            Panel(
                title="Clock difference",
                description="By how much a host is ahead of Postgres: above a minute nothing is deleted for its age.",
                unit="s",
                bound=60,
                targets=[Target(select("app_clock_difference_seconds"), "{{instance}}")],
            ),
        ],
    )


def _trouble() -> Row:
    return Row(
        "What must not happen to records",
        [
            Panel(
                title="Fill",
                description="What waits for Postgres, as a part of its bound: at 1 new turns are refused.",
                unit="percentunit",
                bound=0.8,
                targets=[Target(select("app_persist_fill_ratio"), "{{instance}}")],
                quiet="next to nothing waits",
            ),
            Panel(
                title="Tried again, a second",
                description="Transactions, by cause.",
                unit="ops",
                targets=[Target(rate("app_persist_retries_total", by="cause"), "{{cause}}")],
                quiet="Postgres is well",
            ),
            Panel(
                title="Replayed",
                description="Records that an earlier process had left in the spool.",
                unit="short",
                targets=[Target(select("app_persist_replayed_total"), "{{instance}}")],
                quiet="the last end was in order",
            ),
            Panel(
                title="Lost, put aside, in conflict",
                description="Must stay at 0.",
                unit="short",
                targets=[
                    Target(level("app_persist_failures_total", by="reason"), "lost: {{reason}}"),
                    Target(level("app_spool_dead_letters"), "dead letters kept"),
                    Target(level("app_rank_conflicts_total"), "rank conflicts"),
                ],
                quiet="nothing is lost",
            ),
        ],
    )
