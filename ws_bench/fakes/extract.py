"""Answers made of whole sentences from numbered passages, chosen by the words they share with the question."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ws_bench.fakes.text import Sentence, sentences_in, terms, words

_MOST_PASSAGES, _MOST_CHARS = 20, 8_000
"""How much is read, so that an answer takes milliseconds for any prompt."""
_MOST_SENTENCES: Final = 3
_NEAR_THE_BEST: Final = 0.7
"""A sentence that scores below this share of the best one is taken to share a word by chance."""
_HEADING_WEIGHT, _FIRST_PASSAGE, _DEFINITION, _LEANS = 0.5, 0.3, 1.6, 0.8
_DEFINED: Final = re.compile(
    r"\s*(?:what|who|was|wer)\s+(?:is|are|ist|sind)\s+(?:an?\s|the\s|ein\w{0,2}\s|d\w{2}\s)?(.+?)\W*$", re.IGNORECASE
)
_IS: Final = ("is", "are", "ist", "sind", "means")
_ARTICLES: Final = ("a", "an", "the", "der", "die", "das", "ein", "eine")
_LEANING_WORDS: Final = """
    it its he she they them their his her this that these those then there here such both else so but and or nor also
    otherwise therefore neither either one another each er sie es dies diese dieser dieses das dann dort hier so aber
"""
_LEANING: Final = frozenset(_LEANING_WORDS.split())
"""First words of a sentence that cannot be understood without the one before it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One source of a prompt: its number, its title and section, its text."""

    number: int
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A sentence with its passage's place among the passages."""

    order: int
    number: int
    sentence: Sentence
    heading: frozenset[str]
    terms: frozenset[str]
    leans: bool

    @property
    def where(self) -> tuple[int, int, int]:
        return (self.order, self.sentence.paragraph, self.sentence.place)


def answer_from(question: str, passages: Sequence[Passage]) -> str:
    """Up to three sentences, each followed by the number of its passage; empty if none is related to the question. A
    sentence that contains the question itself is not used."""
    candidates = _candidates(question, passages)
    by_place = {candidate.where: candidate for candidate in candidates}
    scores = _scores(question, candidates)
    ranked = sorted((where for where, score in scores.items() if score > 0), key=lambda where: (-scores[where], where))
    chosen: dict[tuple[int, int, int], None] = {}
    for where in ranked:
        if scores[where] < _NEAR_THE_BEST * scores[ranked[0]] or len(chosen) >= _MOST_SENTENCES:
            break
        wanted = _with_context(by_place[where], by_place, first=not chosen)
        if len(chosen.keys() | set(wanted)) <= _MOST_SENTENCES:
            chosen |= dict.fromkeys(wanted)
    places = list(dict.fromkeys(where[0] for where in chosen))
    ordered = sorted(chosen, key=lambda where: (places.index(where[0]), where))
    return " ".join(f"{by_place[where].sentence.text} [{by_place[where].number}]" for where in ordered)


def _candidates(question: str, passages: Sequence[Passage]) -> list[_Candidate]:
    asked = f" {' '.join(words(question))} "
    found: list[_Candidate] = []
    seen: set[str] = set()
    for order, passage in enumerate(passages[:_MOST_PASSAGES]):
        heading = frozenset(terms(passage.heading))
        for sentence in sentences_in(passage.text[:_MOST_CHARS]):
            spoken = words(sentence.text)
            key = f" {' '.join(spoken)} "
            if key in seen or asked in key or key in asked:
                continue
            seen.add(key)
            leans = spoken[0] in _LEANING
            found.append(_Candidate(order, passage.number, sentence, heading, frozenset(terms(sentence.text)), leans))
    return found


def _scores(question: str, candidates: Sequence[_Candidate]) -> dict[tuple[int, int, int], float]:
    """A score of each sentence's relation to the question: rare shared words count more."""
    wanted = terms(question)
    frequency = Counter(term for candidate in candidates for term in candidate.terms & wanted)
    weight = {term: math.log(1 + len(candidates) / count) for term, count in frequency.items()}
    defined = _DEFINED.match(question)
    subject = words(defined[1]) if defined else []
    places = {candidate.where for candidate in candidates}
    scores = {}
    for candidate in candidates:
        own = sum(weight[term] for term in candidate.terms & wanted)
        beside = sum(weight.get(term, 0.0) for term in (candidate.heading & wanted) - candidate.terms)
        score = (own + _HEADING_WEIGHT * beside) * (1 + _FIRST_PASSAGE / (1 + candidate.order)) if own else 0.0
        if candidate.leans:
            score *= _LEANS if _before(candidate.where) in places else 0.0
        if subject and _defines(words(candidate.sentence.text), subject):
            score *= _DEFINITION
        scores[candidate.where] = score
    return scores


def _defines(spoken: Sequence[str], subject: Sequence[str]) -> bool:
    """Whether a sentence begins as a definition of the subject does."""
    begin = 1 if spoken[0] in _ARTICLES else 0
    end = begin + len(subject)
    return list(spoken[begin:end]) == list(subject) and end < len(spoken) and spoken[end] in _IS


def _before(where: tuple[int, int, int]) -> tuple[int, int, int]:
    return (where[0], where[1], where[2] - 1)


def _with_context(
    candidate: _Candidate, by_place: dict[tuple[int, int, int], _Candidate], *, first: bool
) -> list[tuple[int, int, int]]:
    """The sentence, those before it that it depends on and, for the best one, the next if that depends on it."""
    wanted = [candidate.where]
    while by_place[wanted[0]].leans and (before := _before(wanted[0])) in by_place:
        wanted.insert(0, before)
    order, paragraph, place = candidate.where
    after = by_place.get((order, paragraph, place + 1))
    if first and after is not None and after.leans:
        wanted.append(after.where)
    return wanted
