"""Every way in which a run can speak, against the real service: the same turns, and nothing left behind."""

from tests.support.service import StartService
from ws_bench.config.flags import parse_run_flags
from ws_bench.load.run import run_load
from ws_bench.record.summary import RunReport, build_report
from ws_bench.report.report import result_json

ENGINES = {
    "compatible": ("-native=false",),
    "native": ("-native",),
    "deflated": ("-native", "-deflate"),
    "sse": ("-protocol=sse",),
    "openai": ("-protocol=openai",),
    "langgraph": ("-engine=langgraph",),
}
FEW = ("-clients=3", "-requests-per-client=4", "-ramp-duration=0", "-no-live", "-timeout=60s")


async def report_of(url: str, *flags: str) -> RunReport:
    """A few turns from this process: the service shares its loop, so that no figure of time means anything."""
    argv = ["-url", url, *FEW, *flags]
    return build_report(await run_load(parse_run_flags(argv, {}), argv))


async def test_every_engine_asks_and_leaves_nothing(start_service: StartService) -> None:
    async with start_service(model="mock;tokens=20;gap=2", server={"ws_per_message_deflate": True}) as running:
        for engine, flags in ENGINES.items():
            report = await report_of(running.ws_url, *flags)
            result = result_json(report)
            assert result["counts"] == {"total": 12, "success": 12, "errors": 0, "not_sent": 0}, report.samples
            assert result["sessions"] == {"created": 3, "deleted": 3, "delete_failed": 0}, engine
            assert result["first_token_ms"]["count"] == 12, engine
            assert (result["gap_ms"] is not None) is (engine != "compatible"), engine
            assert (report.connect is not None) is (engine in {"compatible", "native", "deflated"}), engine
            # Chat completions and runs carry no ledger; every other answer says where its time went.
            without = engine in {"openai", "langgraph"}
            assert all((turn.server_ms is None) is without for turn in report.recording.turns), engine
            assert await running.get("/chatbot/sessions") == [], engine


async def test_a_completion_brings_its_conversation_along(start_service: StartService) -> None:
    async with start_service() as running:
        kept = await report_of(running.ws_url, "-protocol=openai", "-clients=1", "-delete-session=false")
        [session] = await running.get("/chatbot/sessions")
        asked = [one for one in await running.history(session["id"]) if one["role"] == "user"]
        alone = await report_of(running.ws_url, "-protocol=openai", "-clients=1", "-create-session=false")
        assert len(await running.get("/chatbot/sessions")) == 1
    assert (kept.tally.success, alone.tally.success, len(asked)) == (4, 4, 4)


async def test_a_run_may_stream_its_state_and_need_no_thread(start_service: StartService) -> None:
    state = ("-protocol=langgraph", "-stream-mode=messages-tuple,values")
    async with start_service(model="mock;tokens=20;gap=2") as running:
        for thread in ("-create-session", "-create-session=false"):
            report = await report_of(running.ws_url, *state, thread)
            assert report.tally.success == 12, report.samples
        assert await running.get("/chatbot/sessions") == []


async def test_a_turn_that_fails_is_an_error_of_its_class(start_service: StartService) -> None:
    async with start_service(model="mock;status=400") as running:
        for protocol in ("sse", "openai", "langgraph"):
            report = await report_of(running.ws_url, "-protocol", protocol)
            [(kind, count)] = report.tally.by_class.items()
            # The next ask is a request of its own: a client goes on after an error.
            assert (kind.partition("(")[0], count) == ("server_error_event", 12)


async def test_a_refusal_says_its_status_and_reason(start_service: StartService) -> None:
    async with start_service(server={"ws_per_message_deflate": False}) as running:
        for protocol in ("sse", "openai"):
            report = await report_of(running.ws_url, "-protocol", protocol, "-agent=Nobody", "-session=nobodys")
            assert report.tally.by_class == {"http_404": 12}
            assert "not_found" in report.samples[0], report.samples
        undeflated = await report_of(running.ws_url, "-native", "-deflate")
    assert undeflated.tally.by_class == {"protocol_not_deflated": 3}
