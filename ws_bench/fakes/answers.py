"""The fake model's answers when no knob sets their length: made from the messages of the request alone."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ws_bench.fakes.extract import Passage, answer_from
from ws_bench.fakes.text import sentences_in, terms

STAND_IN = (
    "I am only a stand-in for a language model and know nothing myself: to get real answers, start Turnwise with "
    "OPENAI_API_KEY, or OPENAI_BASE_URL for any server with the same API, and with OPENAI_MODEL."
)
"""The answer if neither the sources nor the conversation hold one."""
GREETING = f"Hello! {STAND_IN}"
ABOUT = (
    "Turnwise is an asyncio backend for LangGraph agents. It times every turn phase by phase, so that the log, the "
    "metrics and the chat page say where the time went, and it stays fast and loses nothing under load. It comes with "
    "ws_bench, a load tester that proves it."
)
NOTHING_FOUND = "The sources do not say anything about that."
NO_DOCUMENTS = "I found nothing about that in the documents."
OUT_OF_REACH = "The documents could not be searched just now."
TOOLS_OUT_OF_REACH = "Some of my tools cannot be reached just now, so I could not use them."
NOT_ALLOWED = "You did not allow it, so I have not done it."
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+[.)])\s)")
"""Where a sentence ends in markdown: a single line break is only where the line was full."""
_SOURCE = re.compile(r"^[ \t]*(?:[-*][ \t]*)?\[(\d{1,3})\][ \t:.]*", re.MULTILINE)
_QUESTION = re.compile(r"^\s*(?:user\s+)?question\s*:\s*(.+)", re.IGNORECASE | re.MULTILINE)
_GREETING = re.compile(
    r"\s*(hello|hi|hey|good (morning|afternoon|evening)|bonjour|salut)\b[\s!.,]*(there|all)?[\s!.,]*$", re.IGNORECASE
)
_ABOUT = re.compile(
    r"\s*(?:(?:please )?(?:what is|what'?s|was ist|tell me about|explain|describe)|do you know)"
    r" (?:turnwise|ws_bench)\W*$",
    re.IGNORECASE,
)
_TITLE = re.compile(
    r"\btitle\b.{0,200}\b(conversation|chat|session|exchange|message|question)", re.IGNORECASE | re.DOTALL
)
_ASKED_BEFORE = re.compile(
    r"\bwhat (did|have) i\b.*\b(say|said|ask|asked|tell|told|write|written|wrote)\b"
    r"|\b(my|the) (first|last|previous|earlier) (question|message|words?)\b|\bremember\b.*\b(said|asked|told|wrote)\b",
    re.IGNORECASE,
)
_MY_WHAT = re.compile(
    r"\b(?:what|who|which|where|when)(?:'s| is| are| was| were)? my ([\w -]{1,60}?)\s*[?.!]*\s*$", re.IGNORECASE
)
_NAME = re.compile(r"\b(?:my name is|call me|i am called)\s+([\w'-]+)", re.IGNORECASE)
_SEARCH_WORDS = re.compile(r"\bsearch (?:terms|query)\b", re.IGNORECASE)
"""In instructions that ask for search terms instead of an answer: the question's own words serve."""
_PASSAGE_END = re.compile(r"\n\s*\n\s*\n|^\s*(?:user\s+)?question\s*:", re.IGNORECASE | re.MULTILINE)
_NAMED = re.compile(r'\b(?:title|section)="([^"\n]*)"')
_DECLINED = re.compile(r"\buser did not allow\b", re.IGNORECASE)
_MISSING = (
    (re.compile(r"\bdocuments could not be searched\b", re.IGNORECASE), OUT_OF_REACH),
    (re.compile(r"\bsearch in the documents found nothing\b", re.IGNORECASE), NO_DOCUMENTS),
    (re.compile(r"\btools cannot be reached\b", re.IGNORECASE), TOOLS_OUT_OF_REACH),
)
"""What an agent's instructions report as missing, and the answer to give."""
_SHORT_RESULT = 400
_TAG_CHARS = 500
# How much is read: a prompt of megabytes must not block the loop that serves the other streams.
_MAX_CHARS = 100_000
_MAX_EARLIER = 100
_MAX_EARLIER_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a prompt as plain text. `images` says what each of its images is."""

    role: str
    text: str
    images: tuple[str, ...] = ()


def turns_of(messages: Sequence[Mapping[str, object]]) -> list[Turn]:
    """The messages of a request as text; content may be a string, a list of parts, or absent."""
    return [
        Turn(str(message.get("role", "")), _text_of(content)[:_MAX_CHARS], _images_of(content))
        for message in messages
        for content in [message.get("content")]
    ]


def reply(turns: Sequence[Turn]) -> str:
    """An answer to the last message from a tool's result, sources or the conversation; else that this is a stand-in.

    Never empty.
    """
    asked = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
    if turns and turns[-1].role == "tool":
        return _from_tools(asked, turns)
    system = "\n".join(turn.text for turn in turns if turn.role in {"system", "developer"})
    sources = _sources_in(f"{system}\n{asked}")
    if _TITLE.search(system) or (_TITLE.search(asked) and not sources):
        return title_for(asked)
    if sources:
        return answer_from(_question_in(asked), sources) or NOTHING_FOUND
    if images := [image for turn in turns if turn.role == "user" for image in turn.images]:
        return f"I was shown {' and '.join(images)}. {STAND_IN}"
    if _SEARCH_WORDS.search(system) and asked.strip():
        return asked.strip()
    earlier = [turn.text[:_MAX_EARLIER_CHARS] for turn in turns if turn.role == "user"][-_MAX_EARLIER - 1 : -1]
    missing = next((text for pattern, text in _MISSING if pattern.search(system)), "")
    return _from_conversation(asked, earlier) or _small_talk(asked, missing) or _nothing_known(asked, earlier, missing)


def title_for(text: str) -> str:
    """A short title from the words of a text: at most six of them."""
    quoted = re.sub(r"^.*\btitle\b[^\n:]*:?", "", text, count=1, flags=re.IGNORECASE | re.DOTALL).strip() or text
    words = re.findall(r"[\w'-]+", quoted)[:6]
    return " ".join(words).capitalize() or "Conversation"


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def _images_of(content: object) -> tuple[str, ...]:
    """Of each image in a message its type and size, such as `image/png of 12 KB`."""
    parts = content if isinstance(content, list) else ()
    shown = [part.get("image_url") for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]
    urls = [one["url"] for one in shown if isinstance(one, dict) and isinstance(one.get("url"), str)]
    return tuple(f"{url[5:].split(';', 1)[0][:40]} of {math.ceil(len(url) * 3 / 4 / 1000)} KB" for url in urls)


def _sources_in(prompt: str) -> list[Passage]:
    """Numbered passages: each begins on a line with `[n]` and ends at the next one or at two empty lines. Title and
    section in a tag before it are its heading."""
    marks = list(_SOURCE.finditer(prompt))
    ends = [*(mark.start() for mark in marks[1:]), len(prompt)][: len(marks)]
    found: dict[int, Passage] = {}
    for mark, end in zip(marks, ends, strict=True):
        text = _PASSAGE_END.split(prompt[mark.end() : end], maxsplit=1)[0].strip()
        if text:
            tag = prompt[max(mark.start() - _TAG_CHARS, 0) : mark.start()].rpartition("\n\n")[2]
            heading = " ".join(_NAMED.findall(tag))
            found[int(mark.group(1))] = Passage(int(mark.group(1)), heading, text)
    return list(found.values())


def _question_in(asked: str) -> str:
    """The question in a user message that may also hold the sources and instructions."""
    explicit = _QUESTION.findall(asked)
    if explicit:
        return str(explicit[-1]).strip()
    first = _SOURCE.search(asked)
    if first is None:
        return asked
    questions = [line.strip() for line in asked.splitlines() if line.rstrip().endswith("?")]
    return questions[-1] if questions else asked[: first.start()].strip() or asked


def _from_tools(asked: str, turns: Sequence[Turn]) -> str:
    """The results of the last tool calls: a short one as it is, of a long one the sentence that shares most words with
    the question."""
    results: list[str] = []
    for turn in reversed(turns):
        if turn.role != "tool":
            break
        results.append(turn.text.strip())
    return "\n\n".join(dict.fromkeys(_of_result(asked, result) for result in reversed(results)))


def _of_result(asked: str, result: str) -> str:
    if _DECLINED.search(result):
        return NOT_ALLOWED
    if len(result) <= _SHORT_RESULT:
        return result or "The tool said nothing."
    sentences = [sentence.text for sentence in sentences_in(result[:_MAX_EARLIER_CHARS])]
    if not sentences:
        return f"{result[:_SHORT_RESULT].rstrip()}…"
    return max(sentences, key=lambda sentence: len(terms(sentence) & terms(asked)))


def _from_conversation(asked: str, earlier: Sequence[str]) -> str:
    """What earlier user messages say, if the question is about them; else empty."""
    if _ASKED_BEFORE.search(asked):
        if not earlier:
            return "This is your first message here."
        which = earlier[0] if re.search(r"\bfirst\b", asked, re.IGNORECASE) else earlier[-1]
        return f"You said: “{which.strip()}”"
    wanted = _MY_WHAT.search(asked)
    return _about_user(wanted.group(1), earlier) if wanted else ""


def _about_user(thing: str, earlier: Sequence[str]) -> str:
    """The user's latest earlier sentence about their `thing`."""
    if thing.strip().lower() == "name":
        for text in reversed(earlier):
            named = _NAME.search(text)
            if named:
                return f"Your name is {named.group(1)}."
    wanted = terms(thing)
    for text in reversed(earlier):
        for sentence in reversed(_SENTENCE_END.split(text)):
            if wanted and wanted <= terms(sentence) and not sentence.rstrip().endswith("?"):
                return f"You told me: “{sentence.strip()}”"
    return f"You have not told me what your {thing.strip()} is."


def _small_talk(asked: str, missing: str) -> str:
    if _GREETING.match(asked):
        return GREETING
    return f"{ABOUT}\n\n{STAND_IN}" if _ABOUT.match(asked) and not missing else ""


def _nothing_known(asked: str, earlier: Sequence[str], missing: str) -> str:
    """What could not be reached, or the earlier message most similar to this one, and that this is a stand-in."""
    if missing:
        return f"{missing} {STAND_IN}"
    wanted = terms(asked)
    related = max(earlier, key=lambda text: len(wanted & terms(text)), default="")
    return f"Earlier you wrote: “{related.strip()}” {STAND_IN}" if wanted & terms(related) else STAND_IN
