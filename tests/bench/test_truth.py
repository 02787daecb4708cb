"""What `make bench-truth` compares with: the reader of summaries, and what its relays say of HTTP and Postgres."""

import struct

import pytest

from backend_kit.kpi.summary import PREFIX
from tests.bench.truth_lines import borrowed, collections_in, flushes_in, queued, stalls_in
from tests.bench.truth_stage import FLUSH_S
from tests.bench.truth_table import Row, printed, samples_of, summary_of, timer
from tests.bench.wiretap import HttpWire, PostgresWire

SUMMARY = f"""
2026-11-28 22:00:00,000 WARNING turnwise.kpi {PREFIX} timer app.phase_latency_ms|phase=llm_invoke count=60 avg=3008.45 \
min=3002.21 max=3021.50 p50=3006.41 p95=3019.77 p99=3021.50
2026-11-28 22:00:00,000 WARNING turnwise.kpi {PREFIX} timer llm.ttft_ms|model=mock;ttft=2 count=1 avg=2.00 min=2.00
2026-11-28 22:00:00,000 WARNING turnwise.kpi {PREFIX} counter cost|model=mock count=0.0946
2026-11-28 22:00:00,000 WARNING turnwise.kpi {PREFIX} db_pool=main size=20 checked_in=8 util_pct=0.0
2026-11-28 22:00:00,000 WARNING turnwise.kpi {PREFIX} cpu_pct=5.10 rss_mb=175.08 open_fds=n/a
"""


def test_a_summary_is_read_line_by_line() -> None:
    told = summary_of(SUMMARY)
    assert told["app.phase_latency_ms|phase=llm_invoke"]["p95"] == 3019.77
    assert told["llm.ttft_ms|model=mock;ttft=2"] == {"count": 1, "avg": 2, "min": 2}
    assert told["cost|model=mock"] == {"count": 0.0946}
    assert told["db_pool=main"] == {"size": 20, "checked_in": 8, "util_pct": 0}
    assert told["cpu_pct"] == {"cpu_pct": 5.1, "rss_mb": 175.08}


def test_a_scrape_is_read_without_its_exemplars() -> None:
    text = '# HELP a b\nturns_total{agent="a b"} 3 # {trace_id="1"} 1\nlag 0.5\n'
    assert samples_of(text) == {'turns_total{agent="a b"}': 3, "lag": 0.5}


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("a", "avg", 102.0, 100.0, "clients"), "ok"),
        (Row("a", "avg", 97.9, 100.0, "clients"), "MISS"),
        (Row("a", "avg", None, 100.0, "clients"), "MISSING"),
        (Row("a", "count", 0.0, 0.0, "clients"), "ok"),
        (Row("a", "count", 1.0, 0.0, "clients"), "MISS"),
        (Row("a", "avg", 1.0, None, "clients"), "MISS"),
        (Row("a", "avg", 1.0, None, "clients", reason="why"), "unseen"),
        (Row("a", "max", 110.0, 100.0, "clients", within=10.0), "ok"),
    ],
)
def test_a_figure_holds_within_two_percent_of_what_was_seen(row: Row, verdict: str) -> None:
    assert row.verdict == verdict
    assert printed([row])[1].split()[0] == "a"


def test_a_timer_is_compared_by_count_mean_and_percentiles() -> None:
    told = {"count": 2.0, "avg": 15.0, "p50": 10.0, "p95": 25.0}
    rows = {row.figure: row.verdict for row in timer("a", told, [0.01, 0.02], "clients")}
    assert rows == {"count": "ok", "avg": "ok", "p50": "ok", "p95": "MISS"}
    assert {row.verdict for row in timer("a", None, [0.01], "clients")} == {"MISSING"}


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 7] for at in range(0, len(data), 7)]


def event(text: str) -> bytes:
    body = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def test_an_exchange_of_http_is_timed_however_it_is_cut() -> None:
    wire = HttpWire()
    body = b'{"model":"mock;tokens=2","messages":"#t3# and then #t12#"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    for at, piece in enumerate(pieces(head + body)):
        wire.up(piece, float(at))
    asked = len(pieces(head + body)) - 1
    told = wire.down(b"HTTP/1.1 100 Continue\r\n\r\n", 50.0)
    told += wire.down(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + event(""), 99.0)
    for now, piece in ((100.0, event("a")), (103.0, event("b")), (104.0, event("c"))):
        assert not told
        told += wire.down(piece, now)
    usage = b'"usage":{"prompt_tokens":7,"completion_tokens":3}'
    told += wire.down(b"%x\r\n%b\r\n" % (len(usage), usage), 104.5)
    for at, piece in enumerate(pieces(b"0\r\n\r\n")):
        told += wire.down(piece, 105.0 + at)
    (record,) = told
    assert (record["begun"], record["asked"], record["text_at"], record["answered"]) == (0, asked, 100, 105)
    assert (record["model"], record["marks"], record["status"]) == ("mock;tokens=2", [3, 12], 200)
    assert (record["texts"], record["gap"], record["usage"]) == (3, 3, [7, 3])


@pytest.mark.parametrize(("texts", "count"), [(b'"one"', 1), (b'["one","two"]', 2)])
def test_the_texts_of_an_embedding_are_counted(texts: bytes, count: int) -> None:
    wire = HttpWire()
    body = b'{"model":"mock","input":%b}' % texts
    wire.up(b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 1.0)
    (record,) = wire.down(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 2.0)
    assert record["inputs"] == count


def test_exchanges_of_one_connection_follow_one_another() -> None:
    wire = HttpWire()
    told = []
    for now in (1.0, 2.0):
        wire.up(b"DELETE /it HTTP/1.1\r\n\r\n", now)
        told += wire.down(b"HTTP/1.1 204 No Content\r\n\r\n", now + 0.5)
    assert [(one["begun"], one["answered"], one["status"]) for one in told] == [(1, 1.5, 204), (2, 2.5, 204)]


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


def startup(application: bytes) -> bytes:
    body = struct.pack("!i", 196608) + b"user\0me\0application_name\0" + application + b"\0\0"
    return struct.pack("!i", 4 + len(body)) + body


READY = message(b"Z", b"I")


def test_a_statement_of_postgres_ends_when_it_is_ready_for_the_next() -> None:
    wire = PostgresWire()
    wire.up(struct.pack("!ii", 8, 80877103), 0.0)
    assert wire.down(b"N", 0.5) == []
    wire.up(startup(b"pool"), 0.5)
    (login,) = wire.down(message(b"R", b"\0\0\0\0") + READY, 1.0)
    assert (login["sql"], login["begun"]) == ("LOGIN", 0)
    values = struct.pack("!hhi", 0, 1, 5) + b"s-123" + struct.pack("!h", 0)
    asked = message(b"P", b"one\0SELECT  $1\0\0\0") + message(b"B", b"\0one\0" + values) + message(b"E") + message(b"S")
    for at, piece in enumerate(pieces(asked)):
        wire.up(piece, 2.0 + at)
    assert wire.down(message(b"D") + message(b"D"), 30.0) == []
    (record,) = wire.down(message(b"C") + READY, 31.0)
    assert record["begun"] <= 3.0
    assert record["asked"] == 2.0 + len(pieces(asked)) - 1
    assert record["answered"] == 31.0
    assert (record["sql"], record["values"], record["rows"]) == ("SELECT $1", ["s-123"], 2)
    wire.up(message(b"B", b"\0one\0" + values) + message(b"S"), 40.0)  # prepared before
    assert wire.down(READY, 41.0)[0]["sql"] == "SELECT $1"


def test_a_statement_that_is_prepared_first_is_one_with_its_use() -> None:
    wire = PostgresWire()
    wire.up(startup(b"pool"), 0.0)
    wire.down(READY, 0.5)
    wire.up(message(b"P", b"one\0SELECT 1\0\0\0") + message(b"S"), 1.0)
    assert wire.down(message(b"1") + READY, 2.0) == []
    wire.up(message(b"B", b"\0one\0" + bytes(6)) + message(b"E") + message(b"S"), 3.0)
    (record,) = wire.down(READY, 4.0)
    assert (record["sql"], record["begun"], record["answered"]) == ("SELECT 1", 1, 4)


def test_rows_of_a_copy_belong_to_its_statement() -> None:
    wire = PostgresWire()
    copy = (
        message(b"P", b"\0COPY t FROM STDIN\0\0\0") + message(b"B", b"\0\0" + bytes(6)) + message(b"E") + message(b"S")
    )
    wire.up(startup(b"pool") + copy, 0.0)
    wire.down(READY, 0.5)
    wire.up(message(b"d", b"row") + message(b"c") + message(b"S"), 1.0)
    assert [one["sql"] for one in wire.down(READY, 2.0)] == ["COPY t FROM STDIN"]
    wire.up(message(b"Q", b"COMMIT\0"), 3.0)
    assert [one["sql"] for one in wire.down(READY, 4.0)] == ["COMMIT"]


def statement(sql: str, begun: float, **more: object) -> dict[str, object]:
    return {"link": 1, "sql": sql, "begun": begun, "ended": begun + 1.0, **more}


def test_the_wait_for_a_connection_is_its_login_or_its_ping() -> None:
    names = ["LOGIN", "BEGIN", "select pg_catalog.version()", "ROLLBACK", "SELECT 1", ";", "SELECT 2", "SELECT 3"]
    uses = borrowed([statement(sql, float(at)) for at, sql in enumerate(names)], pinged=True)
    assert [(use.begun, use.waited_s) for use in uses] == [(0, 4), (5, 1)]
    assert [[one["sql"] for one in use.statements] for use in uses] == [["SELECT 1"], ["SELECT 2", "SELECT 3"]]


def test_begin_is_a_part_of_what_follows_it() -> None:
    names = ["BEGIN", "INSERT", "COMMIT", "BEGIN", "SELECT 1", "ROLLBACK"]
    uses = borrowed([statement(sql, float(at)) for at, sql in enumerate(names)], pinged=False)
    assert [[(one["sql"], one["begun"]) for one in use.statements] for use in uses] == [
        [("INSERT", 0), ("COMMIT", 2)],
        [("SELECT 1", 3)],
    ]


CALLS = """
100.000000 pwrite64(18</spool/s.sqlite-wal>, ""..., 32, 0) = 32 <0.001000>
100.001000 fdatasync(18</spool/s.sqlite-wal>) = 0 (DELAYED) <0.010000>
102.000000 pwrite64(18</spool/s.sqlite-wal>, ""..., 24, 32) = 24 <0.001000>
102.002000 pwrite64(18</spool/s.sqlite-wal>, ""..., 4096, 56) = 4096 <0.001000>
102.003000 fdatasync(18</spool/s.sqlite-wal>) = 0 (DELAYED) <0.010000>
104.000000 pwrite64(18</spool/s.sqlite-wal>, ""..., 4096, 56) = 4096 <0.001000>
105.000000 fsync(19</spool>) = 0 (DELAYED) <0.010000>
107.000000 fdatasync(18</spool/s.sqlite-wal>) = 0 (DELAYED) <0.010000>
"""


def test_a_flush_of_the_log_has_what_was_written_just_before_it() -> None:
    first, second = flushes_in({7: CALLS}, 100.0)
    assert (first.thread, first.begun, second.begun) == (7, pytest.approx(2.0), pytest.approx(7.0))
    assert first.took_s == pytest.approx(0.013 + FLUSH_S)
    assert second.took_s == pytest.approx(0.01 + FLUSH_S)


def test_a_stall_is_one_however_many_pings_wait_and_none_where_the_pinger_was_late() -> None:
    pings = [(0.0, 0.001, 0.0), (1.0, 0.5, 0.0), (1.04, 0.46, 0.0), (2.0, 0.2, 0.15), (3.0, 0.3, 0.0)]
    assert stalls_in(pings) == [(1.0, 1.5), (3.0, 3.3)]


def test_collections_count_between_the_start_and_the_summary() -> None:
    lines = (
        "collected in 0.100000 s",
        "… [KPI][START] …",
        "collected in 0.200000 s",
        f"… {PREFIX} …",
        "collected in 1.0 s",
    )
    assert collections_in("\n".join(lines)) == [0.2]


def test_only_who_comes_while_others_are_embedded_waits() -> None:
    embeds = [{"begun": begun, "ended": begun + 1.0} for begun in (10.02, 11.03, 20.04, 30.5)]
    at_once, behind, alone, slow = zip((10.0, 10.5, 20.0, 29.0), embeds, strict=True)
    way_s = 0.03
    assert queued(embeds, [at_once, behind, alone, slow]) == [0.0, pytest.approx(0.53 - way_s), 0.0, 0.0]
