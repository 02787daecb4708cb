"""The metrics of the agentic service, built once in the lifespan with the registry and the Kpi they feed."""

import math

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter

from backend_kit.kpi import (
    COUNT_BUCKETS,
    SHORT_BUCKETS,
    TURN_BUCKETS,
    Amounts,
    Counter,
    GaugedSeconds,
    Kpi,
    Labelled,
    Seconds,
    ServiceMetrics,
)
from backend_kit.kpi import Gauge as KpiGauge

_STEPS = (
    1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 1.95, 2.1, 2.3, 2.5, 2.75, 3.0, 3.3, 3.6, 3.9, 4.25, 4.6, 5.0, 5.5, 6.0,
    6.6, 7.2, 7.8, 8.5, 9.2,
)  # fmt: skip

FINE = (
    0.005, 0.01, 0.025,
    *(bound for decade in (-2, -1, 0, 1) for step in _STEPS if 0.05 <= (bound := round(step * 10**decade, 4)) <= 60.0),
    120.0,
)  # fmt: skip
"""Buckets for what users wait for, in seconds: steps of at most 10 % from 50 ms to 60 s, and all of `TURN_BUCKETS`.
88 bounds cost a scrape six times what those do: only for families with few children (docs/operations.md)."""

GAP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0)
"""Silence between two fragments of a streamed answer."""

DELTAS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Fragments of a streamed answer."""


class AgenticMetrics(ServiceMetrics):
    """Every metric of a turn, as bound objects: `.observe(seconds)`, `.inc()`, `.set(value)`.

    One call feeds the summary log and Prometheus. Labelled ones are called with their values, in the order of the
    label names: `metrics.turn("georges", "ok").observe(3.05)`. Values: status ok|error|cancelled|timeout|rejected;
    agent is the catalog's id; model the configured name; pool main|batch of the database, llm|kf of HTTP; op the
    statement's name or commit.
    A label is never a user, session or exchange.
    """

    def __init__(self, registry: CollectorRegistry, kpi: Kpi, *, currency: str = "USD") -> None:
        """`currency` is that of the price table; the help text of the cost metric names it."""
        super().__init__(registry, kpi)
        self._currency = currency
        self._turns()
        self._streams()
        self._causes()
        self._model()
        self._tools()
        self._sockets()
        self._persistence()
        self._spool()
        self._fleet()
        self._compatible()
        self._retention()
        self._replication()
        self._traces()

    def _turns(self) -> None:
        # What users wait for has fine buckets. Turns last from a cached refusal to their deadline (120 s).
        self.turn: Labelled[Seconds] = self._timers(
            "app_turn_seconds",
            "From the parsed ask to the final written.",
            ["agent", "status"],
            "app.turn_latency_ms",
            FINE,
        )
        self.first_token: Labelled[Seconds] = self._timers(
            "app_time_to_first_token_seconds",
            "From the parsed ask to the first assistant event handed to the transport.",
            ["agent"],
            "app.ttft_ms",
            FINE,
        )
        self.overhead: Seconds = self._timer(
            "app_turn_overhead_seconds",
            "Turn minus model minus search: the time this service owns.",
            "app.overhead_ms",
            FINE,
        )
        self.unattributed: Seconds = self._timer(
            "app_turn_unattributed_seconds",
            "What the ledger's phases of depth 0 leave of a turn.",
            "turn_unattributed_ms",
            SHORT_BUCKETS,
        )
        # A wait behind max_turns lasts up to limits.queue_deadline_s; above 2.5 s its length no longer matters.
        self.admission_wait: Seconds = self._timer(
            "app_admission_wait_seconds",
            "From the parsed ask to a slot to run in.",
            "admission_wait_ms",
            SHORT_BUCKETS,
        )
        self.turns: Labelled[Counter] = self._counters(
            "app_turns_total", "Turns that ended.", ["agent", "status"], "turns"
        )
        self.turns_in_progress: KpiGauge = self._level("app_turns_in_progress", "Turns that run now.", "turns_inflight")
        self.turns_queued: KpiGauge = self._level(
            "app_turns_queued", "Accepted asks that wait for a slot.", "turns_queued"
        )
        self.turns_capacity: KpiGauge = self._level(
            "app_turns_capacity_ratio",
            "How much of what this process can do is in use: at 1 further turns only wait.",
            "turns_capacity",
        )
        self.replay_events: KpiGauge = self._level(
            "app_replay_events", "Events kept for clients that resume.", "replay_events"
        )
        self.replay_bytes: KpiGauge = self._level(
            "app_replay_bytes", "Bytes of the events kept for clients that resume.", "replay_bytes"
        )
        self._cache = self._counters(
            "app_cache_requests_total", "Look-ups in a cache by outcome.", ["cache", "result"], "cache"
        )

    def _streams(self) -> None:
        self.stream_gap: Seconds = self._timer(
            "app_stream_gap_seconds",
            "Longest silence between two assistant events of a turn: one observation a turn.",
            "app.stream_gap_ms",
            GAP,
        )
        self.turn_deltas: Amounts = self._kpi.amounts(
            "turn_deltas",
            Histogram(
                "app_turn_deltas",
                "Fragments of a streamed answer: one observation a turn that had any.",
                buckets=DELTAS,
                registry=self._registry,
            ),
        )
        self.stream_hold_ms: KpiGauge = self._kpi.gauge(
            "stream_hold_ms",
            Gauge(
                "app_stream_hold_seconds",
                "How long streams let texts gather now, by the load of the loop; 0 while it has time.",
                registry=self._registry,
            ),
            level=True,
            child_scale=1e-3,
        )

    def _causes(self) -> None:
        # Seconds by cause rather than a gauge of shares: rate() over any range gives the time a turn spends on each.
        self.turn_wait: Labelled[Counter] = self._counters(
            "app_turn_wait_seconds_total", "Time of finished turns by what it was spent on.", ["cause"], "turn_wait_s"
        )
        self.bound_by: Labelled[Gauge] = self._states(
            "app_bound_by", "1 for the cause that bounds the service now, 0 for the others.", ["cause"]
        )
        # A reader takes milliseconds; one that does not read is cut after deadlines.send_s.
        self.delivery: Seconds = self._timer(
            "app_turn_delivery_seconds",
            "From the end of a turn to its last frame handed to a socket, or to the end of that socket.",
            "app.delivery_ms",
            SHORT_BUCKETS,
        )

    def _model(self) -> None:
        self.llm_first_chunk: Labelled[Seconds] = self._timers(
            "app_llm_time_to_first_chunk_seconds",
            "From the model request to its first chunk.",
            ["model", "status"],
            "llm.ttft_ms",
            TURN_BUCKETS,
        )
        self.llm_request: Labelled[Seconds] = self._timers(
            "app_llm_request_seconds",
            "From the model request to the end of its stream.",
            ["model", "status"],
            "llm.request_latency_ms",
            TURN_BUCKETS,
        )
        self.llm_tokens: Labelled[Counter] = self._counters(
            "app_llm_tokens_total", "Tokens as the model counted them.", ["model", "type"], "tokens"
        )
        self.llm_cost: Labelled[Counter] = self._counters(
            "app_llm_cost_total", f"Cost of tokens by the price table, {self._currency}.", ["model"], "cost"
        )
        # The causes are codes of errors: llm_unavailable, llm_rate_limited, llm_timeout.
        self.llm_fallbacks: Labelled[Counter] = self._counters(
            "app_llm_fallbacks_total",
            "Calls of which the model did not answer, and another was asked instead.",
            ["model", "cause"],
            "llm_fallbacks",
        )
        http_wait = Histogram(
            "app_http_pool_wait_seconds",
            "Wait for a free connection, by those calls that had to wait.",
            ["pool"],
            buckets=SHORT_BUCKETS,
            registry=self._registry,
        )
        self.http_pool_wait: Labelled[GaugedSeconds] = Labelled(
            1, lambda values: self._kpi.gauged_seconds(f"{values[0]}.pool_wait_ms", http_wait.labels(*values))
        )

    def _tools(self) -> None:
        # A call lasts from a look-up in memory to mcp.call_s.
        self._tool_call = self._timers(
            "app_tool_call_seconds",
            "One call of a tool of an MCP server.",
            ["server", "tool", "status"],
            "tool.call_latency_ms",
            TURN_BUCKETS,
        )

    def tool_called(self, server: str, tool: str, status: str, seconds: float) -> None:
        """Count an ended call: ok, error, timeout or cancelled. Tools beyond the first 20 count as `other`."""
        self._tool_call(server, tool, status).observe(seconds)

    def tools_looked_up(self, *, hit: bool) -> None:
        """Count a request for a server's tools; a hit needed no discovery."""
        self.cache_request("mcp_tools", hit=hit)

    def _sockets(self) -> None:
        self.ws_send: Seconds = self._timer(
            "app_ws_send_seconds",
            "Longest send of a turn, back-pressure included: one observation a turn.",
            "app.ws_send_ms",
            SHORT_BUCKETS,
        )
        # By the keys of `limits:`, joined by _, the last key of a limit under `ai:`, and the limits that have no key:
        # `frames` and `asks_per_socket` of a socket, `asks_per_session` of those that wait for their session.
        self.limit_hits: Labelled[Counter] = self._counters(
            "app_limit_hits_total", "What a limit turned away.", ["limit"], "limit_hits"
        )
        self.ws_connections: KpiGauge = self._level("app_ws_connections", "Open chat sockets.", "ws_connections")
        self.sse_streams: KpiGauge = self._level("app_sse_streams", "Open event streams.", "sse_streams")
        self.outbox_bytes: KpiGauge = self._level(
            "app_outbox_bytes", "Bytes that clients of sockets and event streams have yet to be sent.", "outbox_bytes"
        )

    def _persistence(self) -> None:
        self._kpi.told_at_zero += ["persist_lost", "persist_dead_letters", "rank_conflicts", "persist_retries"]
        self.persist_lag: Seconds = self._timer(
            "app_persist_lag_seconds", "From final to the commit of its rows.", "persist_lag_ms", TURN_BUCKETS
        )
        self.persist_queue_depth: KpiGauge = self._level(
            "app_persist_queue_depth", "Records that wait for the database.", "persist_queue_depth"
        )
        self.persist_oldest_ms: KpiGauge = self._kpi.gauge(
            "persist_oldest_ms",
            Gauge("app_persist_oldest_seconds", "Age of the oldest record that waits.", registry=self._registry),
            level=True,
            child_scale=1e-3,
        )
        self.persist_failures: Labelled[Counter] = self._counters(
            "app_persist_failures_total", "Records that were lost; must stay 0.", ["reason"], "persist_lost"
        )
        self.persist_retries: Labelled[Counter] = self._counters(
            "app_persist_retries_total", "Batch transactions tried again.", ["cause"], "persist_retries"
        )
        self.persist_turns: Counter = self._counter(
            "app_persist_turns_total", "Turns that batch transactions have committed.", "persist_turns"
        )
        self.persist_batch_records: Amounts = self._kpi.amounts(
            "persist_batch",
            Histogram(
                "app_persist_batch_records",
                "Records of one batch transaction.",
                buckets=COUNT_BUCKETS,
                registry=self._registry,
            ),
        )

    def _spool(self) -> None:
        self.dead_letters: Counter = self._counter(
            "app_persist_dead_letters_total",
            "Records that Postgres will never accept, kept in the spool for a person; must stay 0.",
            "persist_dead_letters",
        )
        self.rank_conflicts: Counter = self._counter(
            "app_rank_conflicts_total", "Turns whose ranks another exchange holds; must stay 0.", "rank_conflicts"
        )
        self.persist_replayed: Counter = self._counter(
            "app_persist_replayed_total", "Records that an earlier process had left in the spool.", "persist_replayed"
        )
        self.turns_restarted: Counter = self._counter(
            "app_turns_restarted_total",
            "Turns of an earlier process that were run again without being asked again.",
            "turns_restarted",
        )
        self.spool_ack: Seconds = self._timer(
            "app_spool_ack_seconds",
            "From the hand-over of a finished turn to its being on the spool's disk.",
            "spool_ack_ms",
            SHORT_BUCKETS,
        )
        self.db_ack: Seconds = self._timer(
            "app_db_ack_seconds",
            "From the hand-over of a finished turn to its commit in Postgres, of turns whose end waits for that.",
            "db_ack_ms",
            SHORT_BUCKETS,
        )
        self.spool_commit: Seconds = self._timer(
            "app_spool_commit_seconds",
            "One commit of the spool that a turn, delete or change waits for, its flush included.",
            "spool_commit_ms",
            SHORT_BUCKETS,
        )
        self._spool_file()

    def _spool_file(self) -> None:
        self.spool_records: KpiGauge = self._level(
            "app_spool_records", "Records in the spool, asks of running turns included.", "spool_records"
        )
        self.spool_bytes: KpiGauge = self._level(
            "app_spool_bytes", "Bytes of the spool's files, its reserve included.", "spool_bytes"
        )
        self.spool_dead_letters: KpiGauge = self._level(
            "app_spool_dead_letters", "Dead letters that the spool keeps for a person.", "spool_dead_letters"
        )
        self.spool_damaged_frames: Counter = self._counter(
            "app_spool_damaged_frames_total",
            "Frames of the spool's log that a start could not read, with others behind them that it could.",
            "spool_damaged_frames",
        )
        self.persist_fill: KpiGauge = self._level(
            "app_persist_fill_ratio",
            "What waits for Postgres, by its bound: at 1 new turns are refused.",
            "persist_fill",
        )

    def _fleet(self) -> None:
        self.fleet_instances: KpiGauge = self._level(
            "app_fleet_instances", "Instances that have renewed lately, this one included.", "fleet_instances"
        )
        self.fleet_relayed_turns: KpiGauge = self._level(
            "app_fleet_relayed_turns", "Turns of this instance that others follow.", "fleet_relayed"
        )
        self.fleet_mirrored_turns: KpiGauge = self._level(
            "app_fleet_mirrored_turns", "Turns of other instances that are followed here.", "fleet_mirrored"
        )
        self.fleet_takeovers: Counter = self._counter(
            "app_fleet_takeovers_total", "Turns of instances that died, taken over by this one.", "fleet_takeovers"
        )
        self.fleet_takeover_s: Seconds = self._timer(
            "app_fleet_takeover_seconds",
            "From the last sign of life of an instance to the takeover of a turn of it.",
            "fleet_takeover_ms",
            TURN_BUCKETS,
        )
        self.fleet_bus_up: KpiGauge = self._level(
            "app_fleet_bus_up", "1 while what fleet.bus names carries messages of this instance.", "fleet_bus_up"
        )
        self.fleet_bus_s: Seconds = self._timer(
            "app_fleet_bus_seconds",
            "From a word of this instance to Redis until it hears it.",
            "fleet_bus_ms",
            TURN_BUCKETS,
        )
        messages = PrometheusCounter(
            "app_fleet_messages_total",
            "Messages to other instances, by what has carried them.",
            ["bus"],
            registry=self._registry,
        )
        self.fleet_messages: Labelled[PrometheusCounter] = Labelled(1, lambda values: messages.labels(*values))

    def _compatible(self) -> None:
        self.user_messages: Counter = self._legacy_counter("chat_user_message_total", "Asks accepted.")
        self.exchange_errors: Counter = self._legacy_counter("chat_exchange_error_total", "Turns that ended in error.")
        self.rag_searches: Counter = self._legacy_counter("rag_search_total", "Searches by the RAG agent.")
        self.rag_empty_searches: Counter = self._legacy_counter("rag_search_empty_total", "Searches without a hit.")
        # The original's agent cache is our cache of compiled graphs: one count, two names.
        self._agent_cache = {
            result: self._legacy_counter(f"agent_cache_{result}_total", f"Compiled graph looked up: {result}.")
            for result in ("hit", "miss")
        }

    def _retention(self) -> None:
        # Levels that change within days: Prometheus keeps them, the summary would repeat them every ten seconds.
        self.history_bytes: Labelled[Gauge] = self._states(
            "app_history_bytes", "Size on disk, indexes included.", ["table"]
        )
        self.history_rows: Labelled[Gauge] = self._states(
            "app_history_rows", "Rows, as Postgres estimates them.", ["table"]
        )
        self.clock_difference: Gauge = Gauge(
            "app_clock_difference_seconds",
            "By how much this host's clock is ahead of that of Postgres.",
            registry=self._registry,
        )
        self.pruned_sessions: Counter = self._counter(
            "app_pruned_sessions_total", "Sessions that retention deleted.", "pruned_sessions"
        )

    def _replication(self) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(name, what, registry=self._registry)

        self.postgres_synchronous: Gauge = gauge(
            "app_postgres_synchronous", "1 where each commit of Postgres waits for a standby, else 0."
        )
        self.postgres_standbys: Gauge = gauge("app_postgres_standbys", "Standbys that follow the primary now.")
        self.postgres_unreplicated: Gauge = gauge(
            "app_postgres_unreplicated_records", "Records that a failover now may lose; NaN where that is not known."
        )
        self.postgres_standby_lag: Gauge = gauge(
            "app_postgres_standby_lag_seconds",
            "Age of the newest moment of which the standby has all; NaN where that is not known.",
        )
        for unknown in (self.postgres_unreplicated, self.postgres_standby_lag):
            unknown.set(math.nan)

    def _traces(self) -> None:
        self.trace_spans_sent: Counter = self._counter(
            "app_trace_spans_sent_total", "Spans that the OTLP endpoint has taken.", "trace_spans_sent"
        )
        self.trace_spans_dropped: Labelled[Counter] = self._counters(
            "app_trace_spans_dropped_total",
            "Spans of finished turns that were not delivered.",
            ["reason"],
            "trace_spans_dropped",
        )

    def limit_hit(self, limit: str) -> None:
        """Count a rejection by a limit."""
        self.limit_hits(limit).inc()

    def cache_request(self, cache: str, *, hit: bool, count: int = 1) -> None:
        """Count `count` look-ups of one outcome; `cache` is graph, history, jwt, jwks, statement or mcp_tools."""
        result = "hit" if hit else "miss"
        self._cache(cache, result).inc(count)
        if cache == "graph":
            self._agent_cache[result].inc()

    def _legacy_counter(self, name: str, text: str) -> Counter:
        if not self._kpi.legacy_ms_names:
            return self._kpi.counter(name)
        return self._counter(name, text, name)
