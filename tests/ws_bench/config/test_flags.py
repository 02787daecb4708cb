"""Flags of `run` in Go's dialect, and what follows from them."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ws_bench.config.flags import RunConfig, config_as_json, parse_run_flags, session_url_of
from ws_bench.config.golang import join_go_flags
from ws_bench.config.runflags import DEFAULT_URL
from ws_bench.errors import UsageError


def parsed(*argv: str, **environ: str) -> RunConfig:
    return parse_run_flags(argv, environ)


def test_defaults_are_those_of_the_contract() -> None:
    config = parsed()
    assert config.url == DEFAULT_URL
    assert config.session_url == "http://127.0.0.1:8000/agentic/v1/chatbot/session"
    assert (config.token, config.agent, config.message) == ("fake-token", "Georges", "Hello")
    assert (config.clients, config.requests_per_client, config.requests) == (150, 10, 0)
    assert (config.ramp_s, config.timeout_s, config.prepare_concurrency) == (10.0, 90.0, 20)
    assert (config.create_session, config.prepare_sessions, config.delete_session) == (True, False, True)
    assert (config.session_title, config.session, config.token_in_query) == ("Benchmark", "", False)
    assert (config.insecure, config.debug_events, config.native) == (False, False, False)
    assert config.read_limit_bytes == 4 * 1024 * 1024
    assert config.runtime_context == {}


@pytest.mark.parametrize(
    "argv",
    [
        ("-clients", "7", "-create-session=false", "-ramp-duration", "1m30s", "-insecure"),
        ("--clients", "7", "--create-session=false", "--ramp-duration", "1m30s", "--insecure"),
        ("-clients=7", "-create-session=F", "-ramp-duration=90s", "-insecure=true"),
        ("--clients=7", "--create-session=0", "--ramp-duration=90s", "--insecure=1"),
    ],
)
def test_one_dash_and_two_mean_the_same(argv: tuple[str, ...]) -> None:
    config = parsed(*argv)
    assert (config.clients, config.create_session, config.ramp_s, config.insecure) == (7, False, 90.0, True)


def test_a_value_may_begin_with_a_dash() -> None:
    assert parsed("-message", "-hello").message == "-hello"
    assert join_go_flags(["-message", "--x", "-native"], frozenset({"message"})) == ["--message=--x", "--native"]


def test_a_boolean_may_stand_apart_from_its_flag() -> None:
    # Go would take this for true and drop the rest of the line: nobody can have meant that.
    config = parsed("-create-session", "false", "-clients", "3")
    assert (config.create_session, config.clients) == (False, 3)


def test_the_last_of_two_equal_flags_wins() -> None:
    assert parsed("-clients", "3", "-clients", "5").clients == 5


@pytest.mark.parametrize(
    "argv",
    [
        ("-clients",),
        ("-clients", "0"),
        ("-clients", "many"),
        ("-client", "5"),
        ("-create-session=maybe",),
        ("-timeout", "10"),
        ("-timeout", "0"),
        ("-requests-per-client", "-1"),
        ("-prepare-concurrency", "0"),
        ("-url", "http://127.0.0.1:8000/agentic/v1/chatbot/query/ws"),
        ("-url", "ws://127.0.0.1:8000/elsewhere"),
        ("-protocol", "carrier-pigeon"),
        ("-protocol", "sse", "-native"),
        ("-protocol", "sse", "-burst", "3"),
        ("-protocol", "openai", "-search-policy", "strict"),
        ("-protocol", "openai", "-verify-history"),
        ("-protocol", "openai", "-url", "http://127.0.0.1:8000/v1/chat/completions"),
        ("-protocol", "langgraph", "-search-policy", "strict"),
        ("-protocol", "langgraph", "-verify-history"),
        ("-engine", "langgraph", "-stream-mode", "values"),
        ("-read-limit-bytes", "0"),
        ("stray",),
    ],
)
def test_what_cannot_be_run_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parsed(*argv)


def test_a_refusal_names_the_flag() -> None:
    with pytest.raises(UsageError, match=r"ramp-duration.*invalid duration 'soon'"):
        parsed("-ramp-duration", "soon")


def test_total_mode_makes_one_request_a_client_where_none_is_given() -> None:
    config = parsed("-requests-per-client", "0", "-clients", "8")
    assert (config.per_client, config.requests, config.clients) == (False, 8, 8)


def test_total_mode_needs_no_more_clients_than_requests() -> None:
    config = parsed("-requests-per-client=0", "-requests=3", "-clients=8")
    assert (config.requests, config.clients) == (3, 3)


def test_token_comes_from_flag_then_environment_then_a_fake() -> None:
    assert parsed("-token", "abc", AGENTIC_TOKEN="env").token == "abc"
    assert parsed(AGENTIC_TOKEN=" env ").token == "env"
    assert parsed().token == "fake-token"
    assert parsed("-allow-empty-token").token == ""
    assert parsed("-url", f"{DEFAULT_URL}?token=inside").token == ""


def test_the_token_travels_in_the_header_or_in_the_query() -> None:
    by_header = parsed("-token", "a b")
    assert by_header.dial_url == DEFAULT_URL
    assert by_header.auth_headers == {"Authorization": "Bearer a b"}
    by_query = parsed("-token", "a b", "-token-in-query", "-url", f"{DEFAULT_URL}?x=1&token=old")
    assert by_query.dial_url == f"{DEFAULT_URL}?x=1&token=a+b"


def test_the_token_is_shown_nowhere() -> None:
    config = parsed("-token", "s3cret", "-token-in-query")
    hidden = parsed("-url", f"{DEFAULT_URL}?token=s3cret&x=1")
    for text in (
        repr(config),
        config.shown_url,
        str(config_as_json(config)),
        hidden.shown_url,
        repr(config_as_json(hidden)),
    ):
        assert "s3cret" not in text
    assert hidden.shown_url == f"{DEFAULT_URL}?token=***&x=1"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://h:1/agentic/v1/chatbot/query/ws", "http://h:1/agentic/v1/chatbot/session"),
        ("wss://h/agentic/v1/chatbot/query/ws?token=x", "https://h/agentic/v1/chatbot/session"),
        ("ws://h:1/agentic/v1/chatbot/query/ws-baseline", "http://h:1/agentic/v1/chatbot/session"),
        ("ws://[::1]:1/pre/chatbot/query/ws", "http://[::1]:1/pre/chatbot/session"),
    ],
)
def test_the_session_address_follows_from_the_socket(url: str, expected: str) -> None:
    assert session_url_of(urlsplit(url)) == expected


def test_another_path_needs_a_session_address_only_when_sessions_are_created() -> None:
    elsewhere = "ws://127.0.0.1:1/elsewhere"
    assert parsed("-url", elsewhere, "-create-session=false").session_url == ""
    assert parsed("-url", elsewhere, "-session", "abc").owns_sessions is False
    assert parsed("-url", elsewhere, "-session-url", "http://x/s").session_url == "http://x/s"


def test_retrieval_flags_become_the_runtime_context() -> None:
    config = parsed(
        "-document-library-ids", "a, b,,", "-document-uids", "u1", "-search-policy", "strict",
        "-search-rag-scope", "corpus_only", "-include-session-scope", "false", "-include-corpus-scope", "True",
    )  # fmt: skip
    assert config.runtime_context == {
        "selected_document_libraries_ids": ["a", "b"],
        "selected_document_uids": ["u1"],
        "search_policy": "strict",
        "search_rag_scope": "corpus_only",
        "include_session_scope": False,
        "include_corpus_scope": True,
    }


def test_prompts_are_the_lines_of_a_file_that_are_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\n  second  \n")
    assert [script.turns for script in parsed("-prompts", str(file)).prompts] == [("first",), ("second",)]
    assert parsed().prompts == ()


@pytest.mark.parametrize("content", [None, b"\n \n", b"\xff"])
def test_prompts_that_cannot_be_read_are_a_usage_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match="-prompts"):
        parsed("-prompts", str(file))


def test_runs_of_langgraph_have_a_base_address_and_threads_below_it() -> None:
    beside = parsed("-engine", "langgraph")
    assert (beside.protocol, beside.url, beside.threads_url) == (
        "langgraph", "http://127.0.0.1:8000", "http://127.0.0.1:8000/threads",
    )  # fmt: skip
    assert beside.rest_url("/kpi/verdict") == "http://127.0.0.1:8000/agentic/v1/kpi/verdict"
    other = parsed("-protocol", "langgraph", "-url", "https://host/api/", "-stream-mode", "messages-tuple,values")
    assert (other.threads_url, other.stream_mode) == ("https://host/api/threads", ("messages-tuple", "values"))
