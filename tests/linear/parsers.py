"""Of each parser of both services: texts that would make it slow, or why no text of length reaches it.

A case makes an input of n units and says what reads it. What refuses its input has read it too.
"""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from python_multipart.multipart import parse_options_header
from websockets.server import ServerProtocol

from agentic_backend.agent import answering, questions, sources
from agentic_backend.chat import frames, handshake, sse
from agentic_backend.fleet.membership import Message
from agentic_backend.knowledge import hits, links
from agentic_backend.knowledge.client import enter_timing
from agentic_backend.llm import chunks as llm_chunks
from agentic_backend.llm import failures
from agentic_backend.llm.sse import SseParser
from agentic_backend.llm.thinking import ThinkBlock
from agentic_backend.peers.events import decode_ask, decode_events
from agentic_backend.persist import listing
from agentic_backend.rest import attachments, compression, export
from agentic_backend.session import exchange, titles, turn_report
from agentic_backend.session.branches import marked
from agentic_backend.session.models import HistoryWindow, Session, cut_texts
from agentic_backend.spool.pending import event_of
from agentic_backend.surfaces.agui import reading as agui_reading
from agentic_backend.surfaces.mcp.tools import tool_name
from agentic_backend.surfaces.openai import asked, chat_request, reading, response_input, response_request
from agentic_backend.tracing import traceparent
from backend_kit import auth, wire
from backend_kit.auth import api_keys
from backend_kit.auth.acting import naming_headers
from backend_kit.doctor.clocks import ahead_of
from backend_kit.http import multipart, page_allowed
from backend_kit.http.redact import redact
from backend_kit.http.strict import StrictConnection
from knowledge_flow_backend.embed import model_server
from knowledge_flow_backend.engines.opensearch import body as opensearch_body
from knowledge_flow_backend.engines.opensearch.body import spelled
from knowledge_flow_backend.ingest import names, tables
from knowledge_flow_backend.ingest.blocks import Parsed
from knowledge_flow_backend.ingest.chunks import ChunkRules, chunks
from knowledge_flow_backend.ingest.parsers import (
    csv,
    docx,
    html,
    html_shape,
    jsonl,
    markdown,
    packages,
    pdf,
    pdf_lines,
    pptx,
    text,
    xlsx,
)
from knowledge_flow_backend.ingest.parsers import decode as decoding
from knowledge_flow_backend.library.reasons import Refused
from knowledge_flow_backend.rerank import bm25
from tests.knowledge_flow_backend.ingest import files, office
from tests.support.raw import head

Made = Callable[[int], Any]
Case = tuple[Callable[[Any], object], tuple[Made, ...]]
"""What reads, and the inputs it is given."""


def again(*units: str, before: str = "", behind: str = "") -> tuple[Made, ...]:
    """Texts of n times each unit."""
    return tuple(lambda n, unit=unit: f"{before}{unit * n}{behind}" for unit in units)


def raw(*units: str, before: str = "", behind: str = "") -> tuple[Made, ...]:
    """The same as bytes."""
    return tuple(lambda n, made=made: made(n).encode() for made in again(*units, before=before, behind=behind))


def numbered(unit: str, before: str = "", behind: str = "", between: str = "") -> tuple[Made, ...]:
    """Bytes of n units that each have a number of their own, as names that must be told apart have."""
    return (lambda n: (before + between.join(unit.format(number) for number in range(n)) + behind).encode(),)


_MARKS: Final = "\u0300\u0316"
_WORDS: Final = again("a", "a ", "a.", "a_", "_", ".", " ", "?", "é", _MARKS)
_JSON: Final = raw("[", "1", "-1.", "\\u0000", '{"a":', '"a" ') + raw("1", before='{"a":1.', behind="}")
_OBJECT: Final = (
    *numbered('"{}":1', "{", "}", ","),
    *raw("[1],", before='{"a":[', behind="1]}"),
    *raw("\\u00e9", before='{"a":"', behind='"}'),
)
_HTML: Final = raw(
    "<div>",
    "<span>",
    "<b>",
    "<b><i>",
    "<a href=x>",
    "<p>",
    "<p>x",
    "<ul><li>",
    "<li>",
    "<table><tr><td>",
    "<table>",
    "<tr><td>",
    "<font>",
    "<b><div></b>",
    "<div><table></div></table>",
    "<div></p>",
    "<select>",
    "<option>",
    "<svg>",
    "<template>",
    "<object>",
    "<h1>",
    "<dd><li>",
    "<code>x</code>",
    "<pre>`",
    "</p>",
    "</x>",
    "<br>",
    "<nav>x</nav>",
    "<main>x</main>",
    "<header>x</header>",
    "<",
    "<!--",
    "<a b='",
    "&",
    "&amp",
    "&#",
    " \n",
    "<title>",
    "<script>",
    "<form>",
    "<button>",
    "<form>x</form>",
    "<details><summary>",
    "<svg><path/>",
    "<math><mi>",
    "<div title='</div>'>",
    "<img alt=x>",
    "<div>x</div>",
    "<ruby><rt>",
    "<body a=b>",
)
_MARKDOWN: Final = raw(
    ">",
    "*",
    "[",
    "[a](",
    "`",
    "- ",
    "<a ",
    "*a _b ",
    "_a",
    "![",
    "&a",
    "|a",
    "\\",
    "# a\n",
    "a\n-\n",
    "(",
    "<",
    "[a]: b\n",
    "    a\n",
    "* a\n",
    "<!-- ",
    "> a\n",
    "[a][b]",
    "<http://a",
    "\n",
    "1. a\n",
    "a**b",
    "~~~\n",
    "---\n",
    "title: ",
    "[a]",
    "***a",
    "`` `",
    "[[a]",
    "a\n\n",
    "+ - ",
)


def _archive(part: str, made: Made, start: bytes) -> Made:
    """An office file with one part replaced by what is made."""
    return lambda n: office.repacked(start, {part: made(n)})


def _document(n: int, unit: str) -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    return f'<w:document xmlns:w="{space}"><w:body>{unit * n}</w:body></w:document>'.encode()


def _sheet(n: int, unit: str) -> bytes:
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    return f'<worksheet xmlns="{space}"><sheetData>{unit * n}</sheetData></worksheet>'.encode()


_DOCX: Final = (
    *tuple(
        _archive("word/document.xml", lambda n, unit=unit: _document(n, unit), office.word())
        for unit in (
            "<w:p><w:r><w:t>x</w:t></w:r></w:p>",
            "<w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl>",
            "<w:p><w:pPr><w:pStyle w:val='ListBullet'/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>",
            "<w:p><w:pPr><w:pStyle w:val='Heading1'/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>",
            "<w:sdt><w:sdtContent><w:p/></w:sdtContent></w:sdt>",
        )
    ),
    _archive("word/document.xml", lambda n: _document(1, f"<w:p>{'<w:r><w:t>x</w:t></w:r>' * n}</w:p>"), office.word()),
    _archive(
        "word/document.xml",
        lambda n: _document(1, f"<w:tbl>{'<w:tr><w:tc><w:p/></w:tc></w:tr>' * n}</w:tbl>"),
        office.word(),
    ),
)
_XLSX: Final = tuple(
    _archive("xl/worksheets/sheet1.xml", lambda n, unit=unit: _sheet(n, unit), office.workbook())
    for unit in (
        "<row><c t='inlineStr'><is><t>x</t></is></c></row>",
        "<row/>",
        "<row><c><v>1</v></c></row><row/>",
        "<c><v>1</v></c>",
    )
)


def _slides(n: int) -> bytes:
    with zipfile.ZipFile(io.BytesIO(office.slides())) as archive:
        slide = archive.read("ppt/slides/slide3.xml").decode()
    return office.repacked(
        office.slides(),
        {
            "ppt/slides/slide3.xml": slide.replace(
                "<a:p>", "<a:p><a:r><a:t>x</a:t></a:r></a:p>" * n + "<a:p>", 1
            ).encode()
        },
    )


def _upgrade(made: str) -> object:
    """The head of a handshake, read as a socket's is."""
    server = ServerProtocol()
    server.receive_data(made.encode())
    return [server.accept(event) for event in server.events_received()]  # type: ignore[arg-type]


def _request(made: str) -> object:
    """The head of a request, read as HTTP's is."""
    connection = StrictConnection()
    connection.receive_data(made.encode())
    return connection.next_event()


def _head(header: str) -> tuple[Made, ...]:
    return tuple(
        lambda n, unit=unit: head("/x", f"{header}: {unit * n}").decode()
        for unit in (",", "a", ", a", '"', " ", ";a=", "a;")
    )


def _listed_document(made: bytes) -> object:
    with suppress(links.BadListing):
        links.parse_document(made)
    return None


def _listing(made: bytes) -> object:
    with suppress(links.BadListing):
        links.parse_listing(made)
    return None


def _snippet(text: str) -> object:
    return [listing.snippet(text, (word,)) for word in ("aab", "a" * 199 + "b", "é")]


def _thoughts(text: str) -> object:
    """A text that comes in pieces, and the same in one."""
    block, whole = ThinkBlock(), ThinkBlock()
    return [block.feed(text[place : place + 5]) for place in range(0, len(text), 5)], whole.feed(text)


def _events(made: bytes) -> object:
    parser = SseParser(2**30)
    return [parser.feed(made[start : start + 1000]) for start in range(0, len(made), 1000)]


def _hits(text_: str) -> list[dict[str, Any]]:
    return [{"content": text_, "title": text_, "uid": text_, "section": text_, "citation_url": text_}]


def _named(title: str) -> Session:
    return Session.new("user", "agent", title)


def _chunked(content: str) -> object:
    parsed = text.parse(content.encode())
    return list(chunks(tables.with_headers(parsed, 1200), ChunkRules(1200, 200)))


def _tabled(content: bytes) -> object:
    parsed: Parsed = csv.parse(content)
    return list(chunks(tables.with_headers(parsed, 1200), ChunkRules(1200, 200)))


_PARSERS: Final = "knowledge_flow_backend/ingest/parsers"
_CHAT: Final = "agentic_backend/chat"
_REST: Final = "agentic_backend/rest"
_AGENT: Final = "agentic_backend/agent"
_OPENAI: Final = "agentic_backend/surfaces/openai"
_ASKS: Final = '{"model":"a","messages":[{"role":"user","content":['

_RUN: Final = '{"threadId":"t","runId":"r","messages":['
_ASKED: Final = '{"role":"user","content":"Hello"}]'
_RUNS: Final = (
    *_OBJECT,
    *raw('{"role":"assistant","content":"x"},', before=_RUN, behind=_ASKED + "}"),
    *raw('{"id":"r.1","role":"reasoning","content":"x"},', before=_RUN, behind=_ASKED + "}"),
    *raw("x", before=_RUN + '{"role":"user","content":"', behind='"}]}'),
    *raw('{"type":"text","text":"x"},', before=_RUN + '{"role":"user","content":[', behind='{"type":"image"}]}]}'),
    *numbered(
        '{{"role":"assistant","toolCalls":[{{"id":"c~{0}","function":{{"name":"f"}}}}]}},'
        '{{"role":"tool","content":"x","toolCallId":"c~{0}"}}',
        _RUN,
        "," + _ASKED + "}",
        ",",
    ),
    *raw('{"value":"x"},', before=_RUN + _ASKED + ',"context":[', behind='{"value":"x"}]}'),
    *raw("/", "k/", "%", before=_RUN + _ASKED + ',"resume":[{"status":"cancelled","interruptId":"', behind='"}]}'),
    *raw(
        '{"status":"cancelled","interruptId":"k/words////1/e"},',
        before=_RUN + _ASKED + ',"resume":[',
        behind='{"status":"cancelled","interruptId":"k/words////1/e"}]}',
    ),
)
_EVENTS: Final = (
    *_JSON,
    *raw('[1,"delta",1,"final","x"],', "[],", before="[", behind="[]]"),
    *raw("x", "\\n", "é", before='[[1,"thought","', behind='"]]'),
    *raw("1,", "[", before='[[1,"final",[', behind="1]]]"),
    *raw('\\"a\\":1,', before='[[1,"message","{', behind='\\"b\\":1}"]]'),
    *raw("[[1,2]],", '{"a":1},', before='[[1,"sources","[', behind='1]"]]'),
)
CASES: Final[dict[str, Case]] = {
    "agentic_backend/tracing/traceparent.py::parse": (
        traceparent.parse,
        (
            lambda n: "0" * n,
            lambda n: "00-" * n,
            lambda n: f"01-{'a' * 32}-{'b' * 16}-01" + "-x" * n,
        ),
    ),
    "agentic_backend/peers/events.py::decode_ask": (
        lambda made: decode_ask(made, user_id="u", session_id="s", exchange_id="e"),
        (*_JSON, *_OBJECT),
    ),
    "agentic_backend/peers/events.py::decode_events": (decode_events, _EVENTS),
    "agentic_backend/surfaces/agui/reading.py::read_input": (lambda body: agui_reading.read_input(body, 10**9), _RUNS),
    f"{_PARSERS}/csv.py::parse": (
        csv.parse,
        raw("1", "1,", ",", '"', 'a,"b\n', "a,b\n", ";", "\n", "1 ", '""', "a|b\n", behind="x\ny")
        + raw("a\n", before="a," * 300 + "\n"),
    ),
    f"{_PARSERS}/decode.py::decode": (
        decoding.decode,
        (
            *raw("a", "é", f"a{_MARKS}", _MARKS, "\r", "\u200b"),
            lambda n: b"\xe9\x81 " * n,
            lambda n: bytes(range(128, 256)) * n,
            lambda n: b"a\x00" * n,
            lambda n: b"\xff" * n,
        ),
    ),
    f"{_PARSERS}/decode.py::lines_of": (lambda text: list(decoding.lines_of(text)), again("\n", "\r\n", "a")),
    f"{_PARSERS}/decode.py::clean": (decoding.clean, again("\r", f"a{_MARKS}", _MARKS, "\u0f73", "\xad")),
    f"{_PARSERS}/docx.py::parse": (docx.parse, _DOCX),
    f"{_PARSERS}/html.py::parse": (
        html.parse,
        _HTML
        + numbered("<p><b x={}>x</p>")
        + numbered("<body a{}=b>")
        + numbered(" a{}=b", "<div", ">")
        + numbered("<p{}>")
        + raw("<div>x", "<p>", before="<div>" * 100)
        + raw("`", before="<pre>")
        + raw("<option>x</option>", before="<select>"),
    ),
    f"{_PARSERS}/html_shape.py::checked": (lambda made: html_shape.checked(made.decode()), _HTML),
    f"{_PARSERS}/jsonl.py::parse": (jsonl.parse, _JSON + _OBJECT + raw('{"a":1}\n', '{"a":{"b":[1]}}\n', "\n", "x\n")),
    f"{_PARSERS}/markdown.py::parse": (
        markdown.parse,
        _MARKDOWN
        + numbered("[a{}]: b\n")
        + numbered("[a{}]", "[a]: b\n\n")
        + raw(" ", before="---\ntitle: a", behind="b\n---\n")
        + raw("|a|b|\n", before="|a|b|\n|-|-|\n"),
    ),
    f"{_PARSERS}/packages.py::check": (
        packages.check,
        (lambda n: office.repacked(office.word(), {"a.xml": b"<a/>" * n}),),
    ),
    f"{_PARSERS}/pdf.py::parse": (
        pdf.parse,
        (
            lambda n: files.pdf([["a" * n]]),
            lambda n: files.pdf([["a"] * n]),
            lambda n: files.pdf([["a" * 50 + "-"] * n]),
            lambda n: files.pdf([["a"]] * n),
            lambda n: files.pdf([["a"]], outline=[(0, "a")] * n),
        ),
    ),
    f"{_PARSERS}/pdf_lines.py::plain": (pdf_lines.plain, _WORDS),
    f"{_PARSERS}/pptx.py::parse": (pptx.parse, (_slides,)),
    f"{_PARSERS}/text.py::parse": (text.parse, raw("\n", "\n ", "a\n\n", " ", "a")),
    f"{_PARSERS}/xlsx.py::parse": (xlsx.parse, _XLSX),
    "knowledge_flow_backend/ingest/chunks.py::chunks": (
        _chunked,
        again("a", "a. ", ".", "\n", "a\n\n", ") ", " ", ".)", "a\n"),
    ),
    "knowledge_flow_backend/ingest/tables.py::with_headers": (_tabled, raw("a,b\n", "a,", before="a,b\n")),
    "knowledge_flow_backend/ingest/names.py::label": (
        names.label,
        again("a", "/", "\\", ".", "a/", "é", _MARKS, " ", "c:"),
    ),
    "knowledge_flow_backend/ingest/names.py::base_name": (names.base_name, again("/", "a")),
    "knowledge_flow_backend/ingest/names.py::stem": (names.stem, again(".", "a")),
    "knowledge_flow_backend/ingest/names.py::suffix": (names.suffix, again(".", "a", "./")),
    "knowledge_flow_backend/ingest/names.py::format_of": (names.format_of, again(".", "a")),
    "knowledge_flow_backend/embed/model_server.py::sendable": (model_server.sendable, _WORDS + again("\ud800", "\x00")),
    "knowledge_flow_backend/rerank/bm25.py::words": (bm25.words, _WORDS),
    "knowledge_flow_backend/rerank/bm25.py::bm25": (
        lambda made: bm25.bm25(made, [made] * 5),
        (*_WORDS, lambda n: " ".join(map(str, range(n)))),
    ),
    "knowledge_flow_backend/engines/opensearch/body.py::cut": (opensearch_body.cut, _WORDS),
    "knowledge_flow_backend/engines/opensearch/body.py::words_of": (opensearch_body.words_of, _WORDS),
    "knowledge_flow_backend/engines/opensearch/body.py::spelled": (
        spelled,
        (*_WORDS, lambda n: " ".join(map("a.b{}".format, range(n)))),
    ),
    "agentic_backend/session/branches.py::marked": (
        lambda made: marked(made, "e1"),
        (
            *raw('{"type":"text","text":"aé"},', before='{"parts":[', behind='{}],"metadata":{}}'),
            *raw('"a":1,', '"é":[],', before='{"metadata":{"extras":{', behind='"z":0}}}'),
        ),
    ),
    "agentic_backend/session/models.py::cut_texts": (
        lambda made: cut_texts(made, HistoryWindow(5, 5)),
        (
            *raw('{"type":"text","text":"aé"},', before='{"parts":[', behind='{"type":"text","text":"a"}]}'),
            *raw("a", "\\n", "é", before='{"parts":[{"type":"text","text":"', behind='"}]}'),
        ),
    ),
    "agentic_backend/spool/pending.py::event_of": (event_of, (*_JSON, *_OBJECT)),
    "backend_kit/http/multipart.py::as_text": (multipart.as_text, (*raw("a", "é"), lambda n: b"\xff" * n)),
    "backend_kit/http/multipart.py::names_of": (
        multipart.names_of,
        raw("a", ";", "; ", '"', "=", "a=b;", "*0=a;", "%", "\\", before='form-data; name="'),
    ),
    "backend_kit/http/redact.py::redact": (
        lambda made: redact(made, len(made)),
        again("?", "?a=", "?token=", "bearer ", "bearer", ".", "eyJ", "tw_", "%74", " ", "a", "?%", "=", "bearer."),
    ),
    "backend_kit/auth/identity.py::bearer_of": (
        lambda made: auth.bearer_of([(b"authorization", made.encode())]),
        again("Bearer ", " ", "a", "bearer"),
    ),
    "backend_kit/auth/identity.py::token_of": (
        lambda made: auth.token_of([(b"x-api-key", made.encode())]),
        again(" ", "a", "tw_"),
    ),
    "backend_kit/auth/acting.py::naming_headers": (
        lambda made: naming_headers([(b"x-openwebui-user-id", b"b")] * made),
        (lambda n: n,),
    ),
    "backend_kit/doctor/clocks.py::ahead_of": (
        lambda text: ahead_of(text, 0.0),
        again("1 ", ", ", ":", "+", "(", before="Mon, 12 Jan "),
    ),
    "backend_kit/auth/api_keys.py::parse_key": (api_keys.parse_key, again("_", "tw_", "a", before="tw_")),
    "backend_kit/auth/api_keys.py::digest_of": (api_keys.digest_of, again("a", "é")),
    "backend_kit/auth/api_keys.py::looks_like_key": (api_keys.looks_like_key, again("tw_", "a")),
    "backend_kit/auth/identity.py::header": (lambda made: auth.header([(b"a", b"b")] * made, b"x"), (lambda n: n,)),
    "backend_kit/wire/encoding.py::storable": (wire.storable, again("a", "é", "\ud7ff")),
    "backend_kit/wire/encoding.py::loads": (wire.loads, _JSON + _OBJECT),
    "backend_kit/wire/encoding.py::normalized": (
        lambda made: wire.normalized("NFKD", made),
        again(_MARKS, "\u0f73", "e\u0301", "\ud55c", f"a{_MARKS * 16}", "\ufdfa"),
    ),
    f"{_AGENT}/answering.py::conversation": (lambda made: answering.conversation(made, [], made), _WORDS),
    f"{_AGENT}/answering.py::with_language": (lambda made: answering.with_language("a", made), _WORDS),
    f"{_AGENT}/questions.py::follows_up": (questions.follows_up, _WORDS + again("that!", "is ", "and ", "that ")),
    f"{_AGENT}/sources.py::numbered": (
        lambda made: sources.numbered(_hits(made), 2**30),
        _WORDS + again("\n", "\n ", "[1]", "<source", "-[1"),
    ),
    f"{_AGENT}/sources.py::cited": (
        lambda made: sources.cited(made, 5),
        _WORDS + again("[1]", "[1", "`", "```", "[1,"),
    ),
    f"{_AGENT}/sources.py::marks": (lambda made: sources.marks(made, 5), again("[1]", "`", "[1,2] ", "[1, ")),
    f"{_AGENT}/sources.py::citations": (lambda made: sources.citations(made, []), again("[1]")),
    f"{_AGENT}/sources.py::without_citations": (sources.without_citations, _WORDS + again("[1]", " [1", "\t", "[1, ")),
    f"{_OPENAI}/asked.py::named": (lambda made: asked.named(made, ["a"]), again("@", "a@", "a")),  # type: ignore[arg-type]
    f"{_OPENAI}/asked.py::session_id_of": (
        lambda made: asked.session_id_of(made, {"x-turnwise-session": made[:512]}, {}),
        again("a", "é"),
    ),
    f"{_OPENAI}/reading.py::read_object": (
        reading.read_object,
        raw("1,", "[", "{}", '"\\u0000",', before='{"a":[', behind="1]}") + raw('"a":1,', before="{", behind='"b":1}'),
    ),
    f"{_OPENAI}/chat_request.py::read_chat_request": (
        chat_request.read_chat_request,
        raw(
            '{"role":"user","content":"a"},',
            '{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"b"}}]},',
            before='{"model":"a","messages":[',
            behind='{"role":"user","content":"a"}]}',
        )
        + raw('{"type":"text","text":"a"},', before=_ASKS, behind='{"type":"text","text":"a"}]}]}')
        + raw("a", "### Task:", before=f'{_ASKS}{{"type":"text","text":"', behind='"}]}]}'),
    ),
    f"{_OPENAI}/response_request.py::read_response_request": (
        lambda made: response_input.read_input(response_request.read_response_request(made).input),
        raw(
            '{"role":"user","content":"a"},',
            '{"type":"function_call","call_id":"a","name":"b"},',
            '{"type":"function_call","call_id":"a","name":"b"},{"type":"function_call_output","call_id":"a","output":""},',
            '{"type":"reasoning"},',
            before='{"model":"a","input":[',
            behind='{"role":"user","content":"a"}]}',
        )
        + raw("a", before='{"model":"a","input":"', behind='"}')
        + raw('{"type":"web_search"},', before='{"model":"a","input":"a","tools":[', behind='{"type":"web_search"}]}'),
    ),
    f"{_REST}/attachments.py::file_name": (attachments.file_name, again("a", "/", ".", _MARKS, "\u200b", " ", "é")),
    f"{_REST}/compression.py::chosen": (compression.chosen, again(",", "gzip,", "gzip;q=", ";", " ", "*;q=0.", "a")),
    f"{_REST}/export.py::disposition": (lambda made: export.disposition(_named(made), "md"), _WORDS),
    f"{_CHAT}/frames.py::parse_native": (
        lambda made: frames.parse_native(made.decode(), 2**30),
        _JSON + _OBJECT + raw("a", before='{"type":"ask","session_id":"a","agent_id":"a","message":"', behind='"}'),
    ),
    f"{_CHAT}/frames.py::parse_compatible": (
        lambda made: frames.parse_compatible(made.decode(), 2**30),
        _JSON + _OBJECT,
    ),
    f"{_CHAT}/frames.py::session_id_of": (
        lambda made: frames.session_id_of(made.decode()),
        _JSON + _OBJECT + raw("a", before='{"session_id":"', behind='"}'),
    ),
    f"{_CHAT}/handshake.py::credential_from": (
        lambda made: handshake.credential_from([], (), made, allow_query_token=True),
        raw("?", "&", "=", "a=b&", "%", "%41", "+", ";", before="x=", behind="&token=x"),
    ),
    f"{_CHAT}/handshake.py::first_language": (handshake.first_language, again("fr", ",", ";", " ")),
    f"{_CHAT}/handshake.py::origin_allowed": (
        lambda made: handshake.origin_allowed(made, (), made.partition("://")[2], source=handshake.TokenSource.HEADER),
        again("a", ":", "]", "[", "1.", before="http://"),
    ),
    "agentic_backend/surfaces/mcp/tools.py::tool_name": (tool_name, _WORDS + again("a", " ", "é")),
    "backend_kit/http/origins.py::page_allowed": (
        lambda made: page_allowed(made, (), made.partition("://")[2], any_host=False),
        again("a", ":", "]", "[", "1.", before="http://"),
    ),
    f"{_CHAT}/sse.py::read_body": (lambda made: sse.read_body(made, 2**30), _JSON + _OBJECT),
    f"{_CHAT}/sse.py::read_last_event_id": (sse.read_last_event_id, again("1", "a")),
    "agentic_backend/knowledge/hits.py::parse_hits": (
        lambda made: hits.parse_hits(made, 100),
        _JSON + _OBJECT + raw('{"content":"a","uid":"a","title":"a","score":1},', before="[", behind="1]"),
    ),
    "agentic_backend/knowledge/client.py::enter_timing": (
        enter_timing,
        again("a", "a;dur=1, ", ", ", "a;dur=", ";"),
    ),
    "agentic_backend/knowledge/links.py::parse_document": (_listed_document, _JSON + _OBJECT),
    "agentic_backend/knowledge/links.py::parse_listing": (_listing, _JSON + _OBJECT),
    "agentic_backend/persist/listing.py::snippet": (_snippet, _WORDS),
    "agentic_backend/llm/chunks.py::parse_chunk": (
        llm_chunks.parse_chunk,
        _JSON + _OBJECT + raw("\\ud800", "\\\\", before='{"a":"', behind='"}'),
    ),
    "agentic_backend/llm/chunks.py::parse_answer": (llm_chunks.parse_answer, _JSON + _OBJECT),
    "agentic_backend/llm/failures.py::retry_after_s": (failures.retry_after_s, again("1", "a", " ", ":", "Mon, ")),
    "agentic_backend/fleet/membership.py::Message": (Message.decode, _JSON + _OBJECT),
    "agentic_backend/llm/sse.py::SseParser": (
        _events,
        raw("a", "\n", "\r", "data: a\n", "data: a\n\n", ":", "data:", "\r\n"),
    ),
    "agentic_backend/llm/thinking.py::ThinkBlock": (
        _thoughts,
        again("a", " ", "<", "</", "</think", "<think>", before="<think>") + again(" ", "<think", "<", "a"),
    ),
    "agentic_backend/session/turn_report.py::loggable": (turn_report.loggable, _WORDS + again("\n", '"')),
    "agentic_backend/session/exchange.py::clean": (exchange.clean, again("\x00", "a")),
    "agentic_backend/session/exchange.py::title_from": (exchange.title_from, _WORDS + again("\n", "\r")),
    "agentic_backend/session/titles.py::tidy": (titles.tidy, _WORDS + again("\n", '"', "'", "#", "* ", ".")),
    "the head of a handshake": (
        _upgrade,
        _head("Connection") + _head("Sec-WebSocket-Extensions") + _head("Sec-WebSocket-Protocol") + _head("Upgrade"),
    ),
    "the content type of an upload": (
        parse_options_header,
        tuple(
            lambda n, unit=unit: 'multipart/form-data; x="' + unit * n
            for unit in ('";', '; a="', ";", "; a=b", '\\"; ', '"; a')
        ),
    ),
    "the head of a request": (_request, _head("X-Anything") + _head("Connection")),
}

LIBRARIES: Final = (
    "the content type of an upload",
    "the head of a handshake",
    "the head of a request",
    "agentic_backend/fleet/membership.py::Message",
    "agentic_backend/llm/sse.py::SseParser",
    "agentic_backend/llm/thinking.py::ThinkBlock",
)
"""Cases that are no function of ours with a text as its first argument."""

_OURS: Final = "its text is written by us, in the code or the configuration"
_NAMES_TASK: Final = "the name of a task: text of ours, and an id of a bounded length"
_PASSES_ON: Final = "passes its text on to others, or puts it into a value, without looking into it"
_OPERATOR: Final = "the operator's own words, typed or configured"
_KERNEL: Final = "a file of the kernel's, of which 4,096 bytes are read"

UNREACHED: Final[dict[str, str]] = {
    "agentic_backend/settings.py::pairs_of": _OPERATOR,
    "agentic_backend/branding.py::contrast": _OPERATOR,
    "agentic_backend/rest/page.py::without_comments": "scripts and style sheets of ours",
    "agentic_backend/session/links.py::digest_of": "a token in an address, which is bounded",
    "agentic_backend/tracing/spans.py::user_name": _PASSES_ON,
    "backend_kit/client/connections.py::body_of": _PASSES_ON,
    "backend_kit/kpi/cores.py::pressure_s": _KERNEL,
    "backend_kit/kpi/cores.py::run_delay_s": _KERNEL,
    "backend_kit/kpi/cores.py::throttled_s": _KERNEL,
    "backend_kit/kpi/statements.py::normalized": "statements stand in our code, their values are parameters",
    f"{_OPENAI}/answer_reader.py::page_of": _OPERATOR,
    f"{_OPENAI}/reading.py::missing": _OURS,
    f"{_OPENAI}/response_object.py::seconds_of": _OURS,
    f"{_OPENAI}/reading.py::path": _OURS,
    f"{_OPENAI}/reading.py::wrong": _OURS,
    f"{_AGENT}/questions.py::with_what_it_refers_to": "asks `follows_up` of four texts",
    "agentic_backend/agent/hosted/loading.py::import_agent": _OPERATOR,
    "agentic_backend/agent/hosted/loading.py::load_graph": _OPERATOR,
    "agentic_backend/agent/hosted/model.py::record_model_call": _OURS,
    "agentic_backend/agent/hosted/watch.py::node_phase": "the name of a node, in the code of a graph",
    "agentic_backend/events.py::call_part": _PASSES_ON,
    "agentic_backend/events.py::image_part": _PASSES_ON,
    "agentic_backend/llm/prompt.py::content_of": _PASSES_ON,
    "agentic_backend/events.py::result_part": _PASSES_ON,
    "agentic_backend/events.py::text_part": _PASSES_ON,
    "agentic_backend/agent/hosted/beginning.py::question_id_of": _PASSES_ON,
    "agentic_backend/agent/hosted/beginning.py::stronger": "one of three words",
    "agentic_backend/surfaces/langgraph/assistant_values.py::expect_uuid": "an address of a request, which is bounded",
    "agentic_backend/surfaces/langgraph/assistant_values.py::of_version": _OURS,
    "agentic_backend/surfaces/langgraph/assistant_values.py::version_json": _OURS,
    "agentic_backend/surfaces/langgraph/bodies.py::json_response": _PASSES_ON,
    "agentic_backend/surfaces/langgraph/messages.py::answer": _PASSES_ON,
    "agentic_backend/surfaces/langgraph/messages.py::message_id": _PASSES_ON,
    "agentic_backend/surfaces/langgraph/names.py::assistant_id_of": "an id of at most 128 characters",
    "agentic_backend/surfaces/langgraph/names.py::checkpoint_id_of": _PASSES_ON,
    "agentic_backend/surfaces/langgraph/names.py::is_uuid": "an id, in an address or of a bounded body",
    "agentic_backend/surfaces/langgraph/people.py::run_id_of_answer": _PASSES_ON,
    "agentic_backend/surfaces/langgraph/stream.py::with_beside": _PASSES_ON,
    "agentic_backend/surfaces/agui/people.py::hash_of": _PASSES_ON,
    "agentic_backend/surfaces/agui/people.py::unique_call": _PASSES_ON,
    "agentic_backend/surfaces/agui/runs.py::session_of": _PASSES_ON,
    "agentic_backend/surfaces/agui/writing.py::is_own": "the id of a message, read by `read_input`",
    "agentic_backend/testing/storage.py::session_of": "of a test",
    "agentic_backend/llm/chunks.py::ended": _OURS,
    "agentic_backend/llm/chunks.py::text_chunk": _PASSES_ON,
    "agentic_backend/llm/failures.py::broken": _OURS,
    "agentic_backend/llm/failures.py::silent": _OURS,
    "agentic_backend/verdict/causes.py::account_of": _OURS,
    "backend_kit/aio/vigil.py::kind_of": _NAMES_TASK,
    "backend_kit/http/ws.py::text_frame": _PASSES_ON,
    "backend_kit/kpi/core.py::phase": _OURS,
    f"{_CHAT}/dialects.py::unpaced": "the default of a bound: it reads nothing",
    "agentic_backend/rest/messages.py::enclosed": _PASSES_ON,
    "agentic_backend/rest/upload.py::receive": "a stream, which python-multipart reads in pieces",
    "backend_kit/auth/grant.py::below": _OURS,
    "backend_kit/auth/identity.py::any_agent": "the default of a policy: it reads nothing",
    "backend_kit/db/audit.py::adding": _OURS,
    "backend_kit/db/audit.py::with_events": _OURS,
    "knowledge_flow_backend/cli/client.py::say": _PASSES_ON,
    "knowledge_flow_backend/cli/client.py::refuse": _PASSES_ON,
    "agentic_backend/rest/page.py::origin_of": _OPERATOR,
    "agentic_backend/settings.py::installed": _OPERATOR,
    "backend_kit/db/libpq.py::connect_args": _OPERATOR,
    "backend_kit/doctor/clocks.py::clock_finding": _OURS,
    "backend_kit/doctor/database.py::connections_finding": _OPERATOR,
    "backend_kit/doctor/database.py::server_finding": _OPERATOR,
    "backend_kit/doctor/http.py::readiness": _OURS,
    "backend_kit/doctor/http.py::unreached": _OURS,
    "backend_kit/doctor/models.py::look_at_address": _OURS,
    "backend_kit/doctor/models.py::look_at_models": _OURS,
    "backend_kit/http/routes.py::health_paths": _OPERATOR,
    "backend_kit/http/server.py::listen": _OPERATOR,
    "backend_kit/process.py::arguments": _OPERATOR,
    "backend_kit/settings/base.py::http_url": _OPERATOR,
    "backend_kit/settings/models.py::is_loopback": _OPERATOR,
    "backend_kit/settings/source.py::one_line": _OPERATOR,
    "knowledge_flow_backend/cli/client.py::decoded": "a program of the operator's, which asks a service of theirs",
    "knowledge_flow_backend/cli/client.py::session_with": _OPERATOR,
    "knowledge_flow_backend/ingest/receive.py::receive": "a stream, which python-multipart reads in pieces",
    "knowledge_flow_backend/index/database.py::connect_args": _OPERATOR,
    "knowledge_flow_backend/index/models.py::chunk_uid": _PASSES_ON,
    "knowledge_flow_backend/ingest/chunks.py::chunk_uid": _PASSES_ON,
    "knowledge_flow_backend/ingest/steps.py::embedded_text": _PASSES_ON,
    "knowledge_flow_backend/library/router.py::attachment": "a label, which `names.label` has cut to 240 characters",
    "knowledge_flow_backend/library/statements.py::label_lock": _PASSES_ON,
    "knowledge_flow_backend/engines/opensearch/body.py::heading_of": _PASSES_ON,
    "knowledge_flow_backend/engines/opensearch/body.py::key_of": _PASSES_ON,
    "knowledge_flow_backend/engines/opensearch/body.py::parts_of": "a key of ours, as the index gives it back",
    "knowledge_flow_backend/engines/opensearch/shape.py::number_of": "a name of ours, of an index",
    "knowledge_flow_backend/engines/opensearch/shape.py::numbered": _OPERATOR,
    "knowledge_flow_backend/engines/pgvector/rows.py::check_origin": _OURS,
    "backend_kit/workers.py::hold_port": _OPERATOR,
    "backend_kit/workers.py::serve_workers": _OURS,
    "backend_kit/workers.py::bind_beside_others": _OPERATOR,
}


def quietly(read: Callable[[Any], object], made: Any) -> object:
    """What was read, or the refusal."""
    try:
        return read(made)
    except (
        Refused,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        wire.ServiceError,
        json.JSONDecodeError,
    ) as refusal:
        return refusal
    except Exception as failure:  # noqa: BLE001 - libraries raise what they like: what it took to find out is measured
        return failure
