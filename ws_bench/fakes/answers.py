"""What the fake model says when no knob fixes its text: made from the messages it is given, and nothing else."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GREETING = (
    "Hello! I am the built-in model of this Turnwise installation. Ask me about Turnwise, or about our conversation."
)
ABOUT = (
    "Turnwise is an asyncio backend for LangGraph agents. It times every turn phase by phase, so that the log, the "
    "metrics and the chat page say where the time went, and it stays fast and loses nothing under load. It comes with "
    "ws_bench, a load tester that proves it."
)
NOTHING_FOUND = "The sources do not say anything about that."
_BUILT_IN = (
    "I am the built-in model: I answer about Turnwise, about this conversation, and from the sources I am given. "
    "Set OPENAI_API_KEY or OPENAI_BASE_URL to talk to a real model."
)
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+[.)])\s)")
"""Where a sentence ends in markdown: a single line break is only where the line was full."""
_HEADING = re.compile(r"\s*#{1,6}\s|\s*\|")
_SOURCE = re.compile(r"^[ \t]*(?:[-*][ \t]*)?\[(\d{1,3})\][ \t:.]*", re.MULTILINE)
_QUESTION = re.compile(r"^\s*(?:user\s+)?question\s*:\s*(.+)", re.IGNORECASE | re.MULTILINE)
_GREETING = re.compile(
    r"\s*(hello|hi|hey|good (morning|afternoon|evening)|bonjour|salut)\b[\s!.,]*(there|all)?[\s!.,]*$", re.IGNORECASE
)
_ABOUT = re.compile(r"\bturnwise\b|\bwho are you\b|\bwhat are you\b|\bwhat can you do\b|\bws_bench\b", re.IGNORECASE)
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
_MAX_SENTENCES = 3
# What is looked at: a prompt of megabytes must not hold the loop that serves the other streams.
_MAX_CHARS = 100_000
_MAX_EARLIER = 100
_MAX_EARLIER_CHARS = 4_000
_COMMON_WORDS = """
a about an and are as at be been but by can could did do does for from had has have how i if in is it its me my no not
of on or our say said so tell than that the their them there they this to was we were what when where which who why
will with would you your please le la les un une des de du et est que qui dans sur pour
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a prompt as plain text."""

    role: str
    text: str


def turns_of(messages: Sequence[Mapping[str, object]]) -> list[Turn]:
    """The messages of a request as text; content may be a string, a list of parts, or absent."""
    return [Turn(str(message.get("role", "")), _text_of(message.get("content"))[:_MAX_CHARS]) for message in messages]


def reply(turns: Sequence[Turn]) -> str:
    """An answer to the last user message: from sources, from the conversation, or about Turnwise. Never empty."""
    asked = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
    system = "\n".join(turn.text for turn in turns if turn.role in {"system", "developer"})
    if _TITLE.search(system) or (_TITLE.search(asked) and not _sources_in(asked)):
        return title_for(asked)
    sources = _sources_in(f"{system}\n{asked}")
    if sources:
        return _from_sources(_question_in(asked), sources)
    earlier = [turn.text[:_MAX_EARLIER_CHARS] for turn in turns if turn.role == "user"][-_MAX_EARLIER - 1 : -1]
    return _from_conversation(asked, earlier) or _small_talk(asked) or _nothing_known(asked, earlier)


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


def _terms(text: str) -> set[str]:
    """Words that carry meaning, roughly stemmed, so that `turn`, `turns` and `turned` meet."""
    words = {word for word in _WORD.findall(text.lower()) if word not in _COMMON}
    return {re.sub(r"(ing|ed|es|s)$", "", word) if len(word) > 4 else word for word in words}


def _sources_in(prompt: str) -> dict[int, str]:
    """Numbered passages: each begins on a line with `[n]` and lasts until the next one or an empty line pair."""
    marks = list(_SOURCE.finditer(prompt))
    ends = [*(mark.start() for mark in marks[1:]), len(prompt)][: len(marks)]
    found = {}
    for mark, end in zip(marks, ends, strict=True):
        text = re.split(
            r"\n\s*\n\s*\n|^\s*(?:user\s+)?question\s*:", prompt[mark.end() : end], flags=re.IGNORECASE | re.MULTILINE
        )[0]
        if text.strip():
            found[int(mark.group(1))] = text.strip()
    return found


def _question_in(asked: str) -> str:
    """The question in a user message that may also hold the sources and instructions."""
    explicit = _QUESTION.search(asked)
    if explicit:
        return explicit.group(1).strip()
    first = _SOURCE.search(asked)
    if first is None:
        return asked
    questions = [line.strip() for line in asked.splitlines() if line.rstrip().endswith("?")]
    return questions[-1] if questions else asked[: first.start()].strip() or asked


def _from_sources(question: str, sources: Mapping[int, str]) -> str:
    """The sentences that share the rarest words with the question, best first, each with its source's number."""
    sentences = [
        (number, sentence.strip())
        for number, text in sources.items()
        for sentence in _SENTENCE_END.split(text)
        if len(sentence.strip()) > 2 and sentence.strip() != question and not _HEADING.match(sentence)
    ]
    wanted = _terms(question)
    terms = [_terms(sentence) for _, sentence in sentences]
    frequency = Counter(term for found in terms for term in found)
    scored = [
        (sum(math.log(1 + len(sentences) / frequency[term]) for term in wanted & found), -index)
        for index, found in enumerate(terms)
    ]
    best = sorted((entry for entry in scored if entry[0] > 0), reverse=True)[:_MAX_SENTENCES]
    if not best:
        return NOTHING_FOUND
    # A sentence far weaker than the best one only shares a word by chance.
    chosen = [sentences[-index] for score, index in best if score >= best[0][0] / 2]
    return " ".join(f"{' '.join(sentence.split())} [{number}]" for number, sentence in chosen)


def _from_conversation(asked: str, earlier: Sequence[str]) -> str:
    """What earlier user messages say, where the question is about them; empty where it is not."""
    if _ASKED_BEFORE.search(asked):
        if not earlier:
            return "This is your first message here."
        which = earlier[0] if re.search(r"\bfirst\b", asked, re.IGNORECASE) else earlier[-1]
        return f"You said: “{which.strip()}”"
    wanted = _MY_WHAT.search(asked)
    return _about_user(wanted.group(1), earlier) if wanted else ""


def _about_user(thing: str, earlier: Sequence[str]) -> str:
    """The latest earlier sentence of the user that says what their `thing` is."""
    if thing.strip().lower() == "name":
        for text in reversed(earlier):
            named = _NAME.search(text)
            if named:
                return f"Your name is {named.group(1)}."
    wanted = _terms(thing)
    for text in reversed(earlier):
        for sentence in reversed(_SENTENCE_END.split(text)):
            if wanted and wanted <= _terms(sentence) and not sentence.rstrip().endswith("?"):
                return f"You told me: “{sentence.strip()}”"
    return f"You have not told me what your {thing.strip()} is."


def _small_talk(asked: str) -> str:
    if _GREETING.match(asked):
        return GREETING
    return ABOUT if _ABOUT.search(asked) else ""


def _nothing_known(asked: str, earlier: Sequence[str]) -> str:
    """The earlier message that has most in common with this one, or what this model is."""
    wanted = _terms(asked)
    related = max(earlier, key=lambda text: len(wanted & _terms(text)), default="")
    if wanted & _terms(related):
        return f"Earlier you wrote: “{related.strip()}” {_BUILT_IN}"
    shown = asked.strip()
    return f"You wrote: “{shown[:200]}” {_BUILT_IN}" if shown else _BUILT_IN
