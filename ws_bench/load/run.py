"""One run: prepares sessions, runs the clients, cleans up and returns what it recorded."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from random import Random
from typing import Any

from backend_kit.wire import dumps
from ws_bench.config.arrivals import schedule
from ws_bench.config.flags import RunConfig, config_as_json
from ws_bench.config.options import Cut, Gate, Outputs
from ws_bench.config.prompts import Prompts
from ws_bench.errors import PreparationFailed, TurnBroken
from ws_bench.load.conversation import Conversation, RunContext, SocketLost, create_session
from ws_bench.load.engines import connector_of
from ws_bench.load.history import verify_history
from ws_bench.load.live import LiveProgress, Progress, progress
from ws_bench.load.misbehaviour import MisbehavingClients
from ws_bench.load.pacing import ClosedLoop, Interrupt, OpenLoop, Pacer, SharedTotal
from ws_bench.load.server import ServerMonitor, server_view, verdict_of
from ws_bench.load.sessions import SessionApi, for_each
from ws_bench.record.dialects import clock
from ws_bench.record.environment import environment
from ws_bench.record.gates import GateResult, check_gates
from ws_bench.record.postgres import PostgresMonitor
from ws_bench.record.processes import ProcessMonitor
from ws_bench.record.recorder import Recorder
from ws_bench.record.recording import HistoryCheck, Recording, SessionCounts, window_of
from ws_bench.record.results import TurnResult, first_tokens, gaps, latencies, spread
from ws_bench.record.selfcheck import GeneratorMonitor

_ABORT_TURNS = 20
_ABORT_INTERVAL_S = 1.0
_PROGRESS_INTERVAL_S = 1.0


async def run_load(config: RunConfig, argv: Sequence[str]) -> Recording:
    """Carry out a run. SIGINT or SIGTERM ends it early with a full recording; a second one cancels this call.

    Raises `PreparationFailed` if something that the first turn needs could not be set up, and `UsageError` if the
    arrivals are too many.
    """
    interrupt = Interrupt(config.grace_s)
    with StopSignals(interrupt):
        async with AsyncExitStack() as stack:
            sessions = await stack.enter_async_context(SessionApi(config))
            observe = config.observe
            postgres = await stack.enter_async_context(PostgresMonitor(observe.postgres, observe.metrics_urls))
            return await _Run(config, argv, interrupt, sessions, postgres).execute()


@asynccontextmanager
async def observed(
    outputs: Outputs,
    server: ServerMonitor,
    postgres: PostgresMonitor,
    current: Callable[[], Progress],
    *monitors: Coroutine[Any, Any, None],
) -> AsyncGenerator[None]:
    """Watch services, database and progress during the block, and run the other monitors until its end."""
    watching = [postgres.run_canary(), *monitors]
    if outputs.live:
        watching.append(LiveProgress(current, interval_s=outputs.live_interval_s).show_until_cancelled())
    async with asyncio.TaskGroup() as group:
        scraping = group.create_task(server.scrape_until_stopped(), name="server-metrics")
        tasks = [group.create_task(one, name="monitor") for one in watching]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.stop()
        await scraping
    await postgres.end_window()
    await server.ask_whole_verdict()


class StopSignals:
    """SIGINT and SIGTERM during a run: the first requests an early end, the second cancels the run."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._interrupt.requested:
            if self._task is not None:
                self._task.cancel()
            return
        print("interrupted: no new turns; running ones may end (again: stop at once)", file=sys.stderr, flush=True)
        self._interrupt.request()


class _Run:
    """The state of one run: its clients, the misbehaving ones, and what monitors them."""

    def __init__(
        self,
        config: RunConfig,
        argv: Sequence[str],
        interrupt: Interrupt,
        sessions: SessionApi,
        postgres: PostgresMonitor,
    ) -> None:
        self._config = config
        self._argv = argv
        self._interrupt = interrupt
        self._sessions = sessions
        self._postgres = postgres
        self._started_unix = time.time()
        self._recorder = Recorder(config.clients)
        # Each purpose has its own random sequence, so that a flag for one does not shift the others.
        seed = config.load.seed
        prompts = Prompts(config.prompts, config.message, _random(seed, "prompts"))
        self._context = RunContext(config, connector_of(config), interrupt, sessions, self._recorder, prompts)
        self._misbehaving = MisbehavingClients(self._context, _random(seed, "misbehaviour"))
        self._server = ServerMonitor(config, self._recorder)
        self._pacer: Pacer = SharedTotal(interrupt, total=0)
        self._begun = 0.0
        self._ready = 0
        self._all_ready = asyncio.Event()
        self._planned: tuple[float, float] | None = None
        self._scheduled = asyncio.Event()
        self._aborted = ""

    async def execute(self) -> Recording:
        config, recorder = self._config, self._recorder
        if config.owns_sessions and config.per_client and config.prepare_sessions:
            await self._prepare()
        if config.outputs.progress:
            await self._wait_for_start()
        self._begun = recorder.now()
        self._pacer = self._make_pacer()
        history: HistoryCheck | None = None
        with (
            GeneratorMonitor(recorder.begin, lambda: recorder.in_flight) as watch,
            ProcessMonitor(config.observe.pids, recorder.begin) as processes,
        ):
            try:
                await self._load()
                history = await self._verify()
            finally:
                await self._delete(self._context.prepared + self._context.kept_sessions)
        elapsed_s = recorder.now()
        self._print_delete_failures()
        recording = Recording(
            config=config_as_json(config),
            started_unix=self._started_unix,
            total=self._pacer.total,
            elapsed_s=elapsed_s,
            turns=recorder.turns,
            gaps=gaps(recorder.turns),
            connect_ms=recorder.connect_ms,
            session_ms=recorder.session_ms,
            close_ms=recorder.close_ms,
            sessions=SessionCounts(self._sessions.created, self._sessions.deleted, len(self._sessions.delete_failures)),
            interrupted=self._interrupt.requested and not self._aborted,
            aborted=self._aborted,
            planned=self._planned,
            dropped=self._pacer.dropped if isinstance(self._pacer, OpenLoop) else 0,
            reconnects=recorder.reconnects,
            besides=self._misbehaving.counts.as_json(),
            series=[watch.series],
            postgres=self._postgres.view,
            history=history,
            watched=processes.as_json(),
            environment=environment(self._argv),
        )
        window = window_of(recording)
        recording.server = server_view(self._server.log, window)
        recording.verdict = verdict_of(self._server.log, window)
        return recording

    async def _load(self) -> None:
        """Run all clients, from the first one's ramp slot to the last one's end, under observation."""
        monitors = [self._watch_edges()]
        if self._config.gates.abort:
            monitors.append(self._watch_gates())
        if self._config.outputs.progress:
            monitors.append(self._report_progress())
        async with (
            observed(self._config.outputs, self._server, self._postgres, self._progress, *monitors),
            asyncio.TaskGroup() as misbehaving,
        ):
            self._misbehaving.start(misbehaving)
            async with asyncio.TaskGroup() as clients:
                for client in range(self._config.clients):
                    clients.create_task(self._client(client), name=f"client-{client}")
                if isinstance(self._pacer, OpenLoop):
                    clients.create_task(self._start_schedule(self._pacer), name="schedule")
            self._misbehaving.end()

    def _make_pacer(self) -> Pacer:
        config, load = self._config, self._config.load
        if load.open:
            times = schedule(load.stages, load.arrival, _random(load.seed, "arrivals"))
            return OpenLoop(self._interrupt, times, patience_s=config.timeout_s)
        if config.mode == "total-requests":
            return SharedTotal(self._interrupt, total=config.requests)
        return ClosedLoop(
            self._interrupt,
            clients=config.clients,
            turns_each=config.requests_per_client,
            ramp_s=config.ramp_s,
            duration_s=load.duration_s,
            think=load.think,
            random=_random(load.seed, "think"),
        )

    async def _start_schedule(self, pacer: OpenLoop) -> None:
        """Start the arrivals once every client has its socket or has failed to get one."""
        await self._all_ready.wait()
        begin = pacer.start() - self._recorder.begin
        self._planned = (begin, begin + self._config.load.planned_s)
        self._scheduled.set()

    async def _client(self, client: int) -> None:
        self._recorder.active += 1
        try:
            if self._config.load.open:
                await self._open_client(client)
            elif self._config.per_client:
                await self._closed_client(client)
            else:
                await self._single_turns(client)
        finally:
            self._recorder.active -= 1

    async def _closed_client(self, client: int) -> None:
        """One session, one socket, turns in sequence; if the socket fails, the remaining turns are not sent."""
        began = clock()
        if await self._pacer.admit(client) is None:
            return
        conversation = Conversation(client, self._context)
        try:
            await conversation.open()
            admitted = True
            while admitted:
                self._misbehaving.before_turn()
                await conversation.run_turn()
                admitted = await self._pacer.admit(client) is not None
            self._recorder.client_done()
        except TurnBroken as broken:
            self._record_not_asked(client, began, broken)
        except SocketLost:
            return
        finally:
            await conversation.close()

    async def _open_client(self, client: int) -> None:
        """A socket before the first turn, a new one after a failure; each turn that arrives is asked or an error."""
        conversation = Conversation(client, self._context)
        try:
            await self._interrupt.pause(client * self._config.ramp_s / self._config.clients)
            try:
                await conversation.open()
            except TurnBroken:
                # The first turn of this client tries again and reports the error.
                await conversation.disconnect()
            self._ready += 1
            if self._ready == self._config.clients:
                self._all_ready.set()
            while (due := await self._pacer.admit(client)) is not None:
                self._misbehaving.before_turn()
                try:
                    await conversation.open()
                    await conversation.run_turn(due)
                except TurnBroken as broken:
                    self._record_not_asked(client, clock(), broken, due)
                except SocketLost:
                    continue
        finally:
            await conversation.close()

    async def _single_turns(self, client: int) -> None:
        """Total mode: a new session and socket for each turn."""
        while await self._pacer.admit(client) is not None:
            began = clock()
            conversation = Conversation(client, self._context)
            self._misbehaving.before_turn()
            try:
                await conversation.open()
                await conversation.run_turn()
            except TurnBroken as broken:
                self._record_not_asked(client, began, broken)
            except SocketLost:
                continue
            finally:
                await conversation.close()
        self._recorder.client_done()

    def _record_not_asked(self, client: int, began: float, broken: TurnBroken, due: float | None = None) -> None:
        """Record a turn that could not be asked, unless an interrupt prevented it: then it counts as not sent."""
        if self._interrupt.requested:
            return
        run_begin = self._recorder.begin
        self._recorder.add_result(
            TurnResult(
                client=client,
                asked=began - run_begin,
                ended=clock() - run_begin,
                error=broken.kind,
                detail=broken.detail,
                sent=False,
                intended=None if due is None else due - run_begin,
            )
        )

    async def _watch_edges(self) -> None:
        """Trigger readings of metrics and database when the steady window begins and ends, as far as known by then."""
        load, recorder = self._config.load, self._recorder
        length = load.planned_s
        await (self._scheduled if load.open else recorder.all_asked).wait()
        begin = recorder.now()
        await self._sleep_until(begin + _seconds(load.warmup, length))
        await self._mark_edge("begin")
        edge_at = recorder.now()
        if length:
            last = (begin if load.open else self._begun) + length
            await self._sleep_until(last - _seconds(load.cooldown, length))
        else:
            await recorder.first_done.wait()
        await self._mark_edge("end")
        await self._server.ask_steady_verdict(recorder.now() - edge_at)

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(at - self._recorder.now(), 0.0))

    async def _mark_edge(self, which: str) -> None:
        self._server.scrape_now()
        if self._config.outputs.progress:
            write_to_parent({"edge": which})
        await (self._postgres.begin_window() if which == "begin" else self._postgres.end_window())

    async def _watch_gates(self) -> None:
        """End the run as soon as a gate fails for the results so far."""
        recorder, gates = self._recorder, self._config.gates.thresholds
        while not self._aborted:
            await asyncio.sleep(_ABORT_INTERVAL_S)
            if len(recorder.turns) >= _ABORT_TURNS:
                failed = [gate.text for gate in self._gates_so_far(gates) if not gate.passed and gate.value is not None]
                if failed:
                    self._aborted = failed[0]
                    self._interrupt.request()

    def _gates_so_far(self, gates: tuple[Gate, ...]) -> list[GateResult]:
        turns = self._recorder.turns
        spreads = {"turn_latency": spread(latencies(turns)), "ttft": spread(first_tokens(turns))}
        # Rates and counts of unsent turns mean nothing before the end.
        counted = [gate for gate in gates if gate.metric in (*spreads, "errors")]
        return check_gates(counted, spreads, {"errors": self._recorder.errors.total()}, len(turns))

    async def _report_progress(self) -> None:
        while True:
            write_to_parent(asdict(self._progress()))
            await asyncio.sleep(_PROGRESS_INTERVAL_S)

    def _progress(self) -> Progress:
        recorder, load = self._recorder, self._config.load
        ends_at = None
        if load.planned_s:
            soonest = self._begun + (self._config.ramp_s if load.open else 0.0)
            ends_at = (self._planned[0] if self._planned else soonest) + load.planned_s
        return progress(
            elapsed_s=recorder.now(),
            done=len(recorder.turns),
            total=0 if load.duration_s else self._pacer.total,
            active=recorder.active,
            in_flight=recorder.in_flight,
            recent_ms=recorder.recent_latencies(),
            errors=dict(recorder.errors.most_common()),
            ends_at_s=ends_at,
        )

    async def _wait_for_start(self) -> None:
        """Wait until the parent closes this process's input, which it does when every worker is prepared."""
        write_to_parent({"ready": True})
        loop, closed = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), closed.set)
        try:
            async with asyncio.TaskGroup() as group:
                stopping = group.create_task(self._interrupt.wait(), name="interrupt")
                stopping.add_done_callback(lambda _: closed.set())
                await closed.wait()
                stopping.cancel()
        finally:
            loop.remove_reader(sys.stdin.fileno())

    async def _prepare(self) -> None:
        """Create one session per client. On a failure those already created are deleted."""
        failures: list[TurnBroken] = []

        async def prepare(_: int) -> None:
            if failures or self._interrupt.requested:
                return
            try:
                self._context.prepared.append(await create_session(self._context))
            except TurnBroken as broken:
                failures.append(broken)

        await for_each(range(self._config.clients), prepare, concurrency=self._config.prepare_concurrency)
        if failures and not self._interrupt.requested:
            await self._delete(self._context.prepared)
            raise PreparationFailed(f"prepare sessions failed: {failures[0]}")

    async def _verify(self) -> HistoryCheck | None:
        config = self._config
        if not config.verify_history:
            return None
        return await verify_history(
            self._sessions,
            self._context.acknowledged,
            patience_s=config.timeout_s,
            concurrency=config.prepare_concurrency,
        )

    async def _delete(self, session_ids: list[str]) -> None:
        if self._config.delete_session:
            await for_each(session_ids, self._sessions.delete, concurrency=self._config.prepare_concurrency)

    def _print_delete_failures(self) -> None:
        failures = self._sessions.delete_failures
        if failures:
            print(f"delete session failed: {len(failures)} times, last: {failures[-1]}", file=sys.stderr)


def write_to_parent(what: Mapping[str, object]) -> None:
    """Print a line of JSON for the parent process. Raises OSError, which ends the run, if the parent is gone."""
    print(dumps(dict(what)).decode(), flush=True)


def _random(seed: int, purpose: str) -> Random:
    return Random(f"{seed}/{purpose}")  # noqa: S311 - a repeatable load, not a secret


def _seconds(cut: Cut, length: float) -> float:
    """A cut in seconds; 0 for one in turns, or a share while the length is unknown, which are applied afterwards."""
    if cut.kind == "share":
        return cut.amount * length
    return cut.amount if cut.kind == "seconds" else 0.0
