"""What to search for if a question only makes sense after an earlier one. Pure functions, English and French."""

import re
from collections.abc import Sequence
from typing import Final

from agentic_backend.llm.prompt import HistoryItem

_MAX_WORDS: Final = 15
_MAX_EARLIER: Final = 3
_MAX_EARLIER_CHARS: Final = 600

_WORD: Final = re.compile(r"[\w'\u2019-]+")
_OPENING: Final = re.compile(
    r"\W*(?:and|but|so|or|also|then|what about|how about|what else|which one|why not"
    r"|et|mais|donc|ou|alors|aussi|qu'en est-il|pourquoi pas|lequel|laquelle)\b",
    re.IGNORECASE,
)
_REFERRING_WORDS = """
it its itself this these those they them their theirs he him his she her hers
il ils elle elles cela ça ceci celui celle ceux celles celui-ci celle-ci leur leurs
"""
_REFERRING: Final = frozenset(_REFERRING_WORDS.split())
# "that" also joins clauses; after such a word, at the end or at the beginning it refers to something said before.
_THAT: Final = re.compile(
    r"\b(?:do|does|did|is|was|are|were|can|could|will|would|should|about|of|for|with|to|in|on|than|after|before|like"
    r"|mean|by|from|why|how|what's)\s+that\b|\bthat\W*$|^\W*that\b",
    re.IGNORECASE,
)
_ASKING_WORDS = """
who what when where why how which whose
qui que quoi quand où pourquoi comment quel quelle quels quelles combien
"""
_ASKING: Final = frozenset(_ASKING_WORDS.split())
_VERBS_WORDS = """
is are was were do does did can could will would should has have had
est sont était fait font peut doit a ont
"""
_VERBS: Final = frozenset(_VERBS_WORDS.split())


def follows_up(question: str) -> bool:
    """Whether a question seems to depend on an earlier one: "and how long does that take?", "why?".

    This is a guess from its words: it is short and opens with "and", contains a pronoun, or is little more than a
    question word. A false positive adds the earlier question to the search, a false negative leaves it out.
    """
    words = [word.lower() for word in _WORD.findall(question)]
    if not words or len(words) > _MAX_WORDS:
        return False
    if _OPENING.match(question) or not _REFERRING.isdisjoint(words) or _THAT.search(question):
        return True
    return len(words) <= 3 and words[0] in _ASKING and _VERBS.isdisjoint(words)


def with_what_it_refers_to(question: str, history: Sequence[HistoryItem]) -> str:
    """What to search for: the question, preceded by the earlier questions on which it depends.

    It goes back over at most 3 of the user's questions, to the first that depends on no other.
    """
    if not follows_up(question):
        return question
    needed: list[str] = []
    for item in reversed(history):
        if item.role != "user":
            continue
        needed.append(item.text[:_MAX_EARLIER_CHARS])
        if len(needed) == _MAX_EARLIER or not follows_up(item.text):
            break
    return "\n".join([*reversed(needed), question])
