"""Of each regular expression: what a hostile text for it looks like, or why no text from outside reaches it.

A hostile text is `(before, again, behind)`: `again` n times between the two others. What makes a pattern slow is a
text that nearly matches at each of its signs. Beside these, each pattern gets what `attempts` makes of its own signs.
"""

import itertools
import re
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]  # what `re` itself reads patterns with
from typing import Any, Final

Hostile = tuple[str, str, str]

_AGENT: Final = "agentic_backend/agent"
_CHAT: Final = "agentic_backend/chat"
_TRACING: Final = "agentic_backend/tracing"
_REST: Final = "agentic_backend/rest"
_PARSERS: Final = "knowledge_flow_backend/ingest/parsers"
_SEARCH: Final = "knowledge_flow_backend/search"
_OPENSEARCH: Final = "knowledge_flow_backend/engines/opensearch"
_UNICODE: Final = ("", "\u200b", "x")

HOSTILE: Final[dict[str, tuple[Hostile, ...]]] = {
    f"{_AGENT}/answering.py::_LANGUAGE": (("en", "-en", "!"), ("", "e", "!")),
    f"{_AGENT}/mcp.py::_NAME": (("", "a", " "),),
    f"{_AGENT}/mcp.py::_TOKEN": (("", "a", "\n"),),
    f"{_AGENT}/mcp.py::_fit": (("", "é", ""), ("", "a", "")),
    f"{_AGENT}/questions.py::_WORD": (("", "a", "!"), ("", "a ", "")),
    f"{_AGENT}/questions.py::_OPENING": (("", " ", "x"), ("", "and", "x")),
    f"{_AGENT}/questions.py::_THAT": (
        ("that", "!", "x"),
        ("", "that!", "x"),
        ("", "is ", ""),
        ("is", " ", "x"),
        ("", " ", "x"),
        ("", "that ", "x"),
    ),
    f"{_AGENT}/sources.py::_CODE": (("", "`", "\n"), ("```", "`` ", ""), ("", "`a\n", ""), ("", "`` `", "")),
    f"{_AGENT}/sources.py::_CITED": (
        ("[1", " ", "x"),
        ("[1", ",1", "x"),
        ("", "[1 ", ""),
        ("", "[1](", ""),
        ("[1", " , 1", "x"),
        ("", "[1] ", ""),
    ),
    f"{_AGENT}/sources.py::_NUMBER_MARK": (("", " ", "x"), ("", " \n", "x"), ("-", " ", "x"), ("", "[1", "")),
    f"{_AGENT}/sources.py::_DELIMITER": (("", "<", ""), ("", "</source", ""), ("", "<sourc", "")),
    f"{_AGENT}/sources.py::_EMPTY_LINES": (("\n", " ", "x"), ("", "\n x", ""), ("\n\n", " ", "x"), ("", "\n \n", "x")),
    f"{_AGENT}/sources.py::marks": (("", "1", "x"), ("", "1,", "")),
    f"{_AGENT}/sources.py::_CITATION": (
        ("", " ", "x"),
        ("", "\t ", "["),
        ("", "[1", ""),
        ("[1", ",1", ""),
        ("", " [1 ", ""),
    ),
    f"{_REST}/agents.py::_Starter": (("", " ", ""),),
    f"{_REST}/attachments.py::_UNSEEN": (_UNICODE,),
    f"{_REST}/attachments.py::file_name": (("", "/", ""), ("", "a", "")),
    f"{_REST}/documents.py::Uid": (("", "a", "!"),),
    f"{_REST}/export.py::_FENCE": (("", "`", ""), ("", "`` ", "")),
    f"{_REST}/export.py::disposition": (("", "a", ""), ("", "_a", "")),
    f"{_REST}/export.py::disposition#2": (("", "a", ""), ("", "é", "")),
    f"{_REST}/export.py::_fenced": (("", "a", " "),),
    "backend_kit/wire/codes.py::_NAME": (("", "a", " "),),
    "backend_kit/processes.py::_PYTHON": (("python", "1", "x"), ("", "python", "")),
    "backend_kit/processes.py::_UNSAFE": (("", " ", "x"), ("", " a", "")),
    f"{_CHAT}/frames.py::session_id_of": (("", "a", " "),),
    f"{_TRACING}/traceparent.py::_FORM": (("00-", "a", ""), ("", "0", "")),
    "agentic_backend/knowledge/client.py::_TOKEN": (("", "a", "\n"),),
    "agentic_backend/knowledge/client.py::_ID": (("", "a", " "),),
    "agentic_backend/knowledge/client.py::_PART": (
        ("", "a", ""),
        ("", ", a", ""),
        ("", "a;dur=1,", ""),
        ("a;dur=", "1", ""),
        ("", ", ", ""),
        ("", "a;dur=1;start=1", ""),
    ),
    "agentic_backend/llm/chunks.py::_ESCAPE": (("", "\\", ""), ("", "\\ud800", ""), ("", "\\ud800\\u", "")),
    "agentic_backend/llm/text_shape.py::_TEXT": (
        ("", '"content":"', ""),
        ('"content":"', "a", ""),
        ('"content":"', "\\\\", ""),
        ('"content"', " ", ""),
        ('"content":', " ", ""),
    ),
    "agentic_backend/session/turn_report.py::_PLAIN": (("", "a", " "),),
    "agentic_backend/session/turn_report.py::_QUOTABLE": (("", " ", "\n"),),
    "backend_kit/http/context.py::_REQUEST_ID": (("", "a", " "),),
    "backend_kit/http/strict.py::_END_OF_HEAD": (("", "\n\r", "\t"), ("", "\r\n", ""), ("", "\n", "")),
    "backend_kit/http/strict.py::_FOLD": (("", "\n", ""), ("", "\n\r", "")),
    "backend_kit/http/redact.py::_SIGN": (("", "?", ""), ("", "&=", ""), ("", "a", "")),
    "knowledge_flow_backend/ingest/chunks.py::_SENTENCE_END": (
        (".", ")", "x"),
        ("", ".)", "x"),
        ("", ". ", ""),
        (".", " ", ""),
        ("", ".", "x"),
    ),
    "knowledge_flow_backend/ingest/chunks.py::_CUTS": (
        ("\n", " ", "x"),
        ("", "\n x", ""),
        ("", ", ", ""),
        (",", " ", "x"),
        ("", ".)", "x"),
        ("", "\n", "x"),
    ),
    "knowledge_flow_backend/ingest/names.py::_UNSEEN": (_UNICODE,),
    "knowledge_flow_backend/ingest/names.py::_DRIVE": (("", "a:", ""),),
    f"{_PARSERS}/csv.py::_DIGIT": (("", ",", ""),),
    f"{_PARSERS}/csv.py::_NUMBER": (("", "1", "x"), ("", "1,", "x"), ("+", " ", "%%")),
    f"{_PARSERS}/decode.py::_UNSEEN": (("", "\xad", "x"),),
    f"{_PARSERS}/decode.py::_LINE_ENDS": (("", "\r", ""), ("", "\r\n", "")),
    f"{_PARSERS}/decode.py::_WESTERN": (("", "é", ""),),
    f"{_PARSERS}/docx.py::_HEADING": (("heading ", "1", ""),),
    f"{_PARSERS}/docx.py::_LIST": (("list ", "bullet", ""), ("list bullet", " ", "")),
    f"{_PARSERS}/html.py::_CHARSET": (
        ("", "<meta ", ""),
        ("<meta ", "charset", ""),
        ("<meta charset", " ", ""),
        ("", "<meta charset ", ""),
        ("<meta charset=", " ", ""),
    ),
    f"{_PARSERS}/html.py::_SPACES": (("", " ", "x"), ("", " x", "")),
    f"{_PARSERS}/html.py::_BACKTICKS": (("", "`", ""), ("", "` ", "")),
    f"{_PARSERS}/html.py::_LANGUAGE": (("", "lang-", ""), ("", "language", ""), ("lang-", "a", "")),
    f"{_PARSERS}/html_shape.py::_TOKEN": (
        ("", "<", ""),
        ("", "<!--", ""),
        ("", "<a", ""),
        ("", "<a ", ""),
        ("", "<a b='", ""),
        ("", "<a b=\"'", ""),
        ("<a", " ", ""),
        ("<a", " b", ""),
        ("<a", " b ", ""),
        ("<a b", " ", "=x"),
        ("", "<!", ""),
        ("", "</", ""),
        ("", "<!---", ""),
        ("<!--", "-", ""),
        ("<!--", "--!", ""),
        ("<a", "=", ""),
        ("<a", "/", ""),
        ("<a", " =' ", ""),
    ),
    f"{_PARSERS}/html_shape.py::_ATTRIBUTES": (
        ("", "a", ""),
        ("", "a ", ""),
        ("a", " ", "x"),
        ("a=", " ", ""),
        ("", "a='", ""),
        ("", "a=\"'", ""),
        ("", "=", ""),
    ),
    f"{_PARSERS}/html_shape.py::_RAW": (("", "</script", ""), ("", "<", ""), ("", "</", "")),
    f"{_PARSERS}/markdown.py::_FRONT_MATTER": (
        ("---\n", "\n", ""),
        ("---\n", "\n---x", ""),
        ("---", " ", "x"),
        ("---\n---", " ", "x"),
        ("---\n", "\n--- ", "x"),
    ),
    f"{_PARSERS}/pdf.py::_NO_TITLE": (("", "a", ""), ("", ".", ""), ("", ".doc", "x"), ("", "a.", "")),
    f"{_PARSERS}/pdf_lines.py::_DIVIDED": (("", "a", ""), ("", "a-", ""), ("", "é", "-x")),
    f"{_PARSERS}/pdf_lines.py::_FIRST_WORD": (("", "a", "1"), ("", "1", "")),
    f"{_PARSERS}/pdf_lines.py::_pattern": (("", "1", ""), ("", "1a", "")),
    f"{_PARSERS}/text.py::_BETWEEN": (
        ("\n", " ", "x"),
        ("", "\n x", ""),
        ("", "\n ", "x"),
        ("", "\n", "x"),
        ("", "\n\t", "x"),
    ),
    "backend_kit/db/pool.py::_PARAMETER": (("", ":", ""), (":", "a", ""), ("", ":a", ""), ("a", "::a", "")),
    "knowledge_flow_backend/rerank/bm25.py::_WORD": (("", "a", ""), ("", "_", "")),
    f"{_SEARCH}/router.py::_ID": (("", "a", " "),),
    f"{_OPENSEARCH}/body.py::_WORD": (("", "a", ""), ("", "a ", "")),
    f"{_OPENSEARCH}/body.py::_DOTTED": (("", "a", ""), ("", "a.", ""), ("", "a..", ""), ("", "_", "")),
    f"{_SEARCH}/wire.py::_UNRESERVED": (("", "a", " "),),
    "turnwise/console.py::_TROUBLE": (("", "a", ""), ("", " ", ""), ("", " ERROR", "")),
    "turnwise/supervise.py::_RAISED": (("", "a", " "), ("", "Error", " "), ("", ".", "")),
    "turnwise/supervise.py::_LOGGED": (("", "a", ""), ("", "a ", ""), ("a a ERROR ", "a", "")),
    "turnwise/supervise.py::_WARNED": (("", "a", ""), ("", "a ", ""), ("a a ERROR ", "a", "")),
    "turnwise/supervise.py::_FATAL": (("", "FATAL:", ""), ("FATAL:", " ", "x"), ("", "FATAL ", "")),
}

BOUNDS: Final[dict[str, int]] = {f"{_PARSERS}/html.py::_CHARSET": 4096}
"""Of what a pattern is given, where that is less than what comes."""

_CONFIGURED: Final = "stands in the configuration file, which is the operator's"
_FLAG: Final = "an option that whoever starts the bench types"
_STAND_IN: Final = "part of the stand-in for a model, which serves this machine only and is no service"
_RUST: Final = "fields of pydantic are matched by an engine that never goes back"

UNREACHED: Final[dict[str, str]] = {
    f"{_AGENT}/fields.py::_is_text": "the pattern is the agent's author's, the value of one who may change agents",
    f"{_PARSERS}/packages.py::_ENCODING": "is given the first 200 bytes of a part",
    "agentic_backend/agent/hosted/watch.py::_NOT_OF_A_NAME": "names of nodes stand in the code of graphs",
    "agentic_backend/settings.py::_number": _CONFIGURED,
    "agentic_backend/settings.py::_DECIMAL": _CONFIGURED,
    "agentic_backend/settings.py::_HEADER_NAME": _CONFIGURED,
    "agentic_backend/settings.py::_HEADER_TEXT": _CONFIGURED,
    "agentic_backend/settings.py::AgentSettings": f"{_CONFIGURED}; {_RUST}",
    "agentic_backend/settings.py::OfferedModel": f"{_CONFIGURED}; {_RUST}",
    "agentic_backend/settings.py::Ai": f"{_CONFIGURED}; {_RUST}",
    "agentic_backend/branding.py::_colour": _CONFIGURED,
    "agentic_backend/rest/page.py::_COMMENTS": "scripts and style sheets of ours",
    "agentic_backend/rest/usage.py::Zone": _RUST,
    "agentic_backend/rest/keys.py::_KeyId": _RUST,
    "agentic_backend/rest/keys.py::MakeKey": _RUST,
    "backend_kit/process.py::_SHA": "reads git's own files of the checkout",
    "backend_kit/wire/encoding.py::_long_rows": "is made of Unicode's tables; `normalized` is measured with it",
    "backend_kit/kpi/statements.py::_PIECE": "statements stand in our code, their values are parameters",
    "ws_bench/record/stacks.py::_FRAME": "what py-spy says of a process of the operator's own",
    "backend_kit/kpi/core.py::_PHASE_NAME": "names of phases stand in the code of agents",
    "backend_kit/settings/models.py::BasePath": f"{_CONFIGURED}; {_RUST}",
    "backend_kit/settings/models.py::ApiKeySecurity": f"{_CONFIGURED}; {_RUST}",
    "backend_kit/settings/models.py::Security": f"{_CONFIGURED}; {_RUST}",
    "knowledge_flow_backend/settings.py::VectorStore": f"{_CONFIGURED}; {_RUST}",
    "turnwise/ports.py::_LOCAL_URL": _CONFIGURED,
    "ws_bench/config/options.py::_GATE": _FLAG,
    "ws_bench/config/golang.py::_TERM": _FLAG,
    "ws_bench/config/options.py::parse_cut": _FLAG,
    "ws_bench/config/options.py::parse_bytes": _FLAG,
}
UNREACHED_FOLDERS: Final = {"ws_bench/fakes/": _STAND_IN}


def attempts(pattern: re.Pattern[Any]) -> Iterator[Hostile]:
    """Texts of the pattern's own signs: each alone and each two, after nothing or what may begin a match."""
    signs = sorted(_signs(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)))[:10]
    for again in (*signs, *("".join(two) for two in itertools.permutations(signs, 2))):
        for before in ("", *signs[:3]):
            yield before, again, "\x00"


def _signs(parsed: Any) -> set[str]:
    """A sign for each literal and each class of a parsed pattern."""
    found: set[str] = set()
    for kind, value in parsed:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL"):
            found.add(chr(value) if name == "LITERAL" else "x")
        elif name == "IN":
            found |= _of_class(value)
        elif name == "ANY":
            found.add("x")
        else:
            for part in _parts(value):
                found |= _signs(part)
    return found


def _of_class(items: Any) -> set[str]:
    classes = {"CATEGORY_SPACE": " ", "CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a"}
    found: set[str] = set()
    for kind, value in items:
        name = str(kind)
        if name == "RANGE":
            found.add(chr(value[0]))
        elif name == "LITERAL" and len(items) <= 4:
            found.add(chr(value))
        elif name == "CATEGORY":
            found.add(classes.get(str(value), "!"))
        elif name == "NEGATE":
            found.add("x")
    return found


def _parts(value: Any) -> Iterator[Any]:
    """The parsed patterns within the argument of an operator."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)
