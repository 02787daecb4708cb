"""Words that carry meaning, roughly stemmed: what the fake model compares questions, sentences and tools by."""

import re
from typing import Final

_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
    a about after again all also am an and any are as at be been before being but by can could did do does doing done
    each every for from get give had has have he her here him his how i if in into is it its just let make many may me
    more most much my no nor not now of off on only or other our out over please she should show so some such tell than
    that the their them then there these they this those to too under up us use used very was we were what when where
    which while who whom whose why will with would you your
    aber als am an auch auf aus bei bin bis das dass dem den der des die dir du durch ein eine einem einen einer eines
    er es für hat ich im in ist mir mit nach nicht noch nur oder sein sich sie sind so um und uns vom von vor wann war
    was weil wenn wer werden wie wird wo zu zum zur über
    au ce cette comme dans de du elle en est et il ils je la le les leur mais nous ou où par pas pour qu que quel quelle
    qui sa se ses son sur un une vous
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
# Longest first; what is left must still be four letters long.
_ENDINGS: Final = (
    "ations", "ungen", "ences", "ation", "ments", "ence", "ings", "ions", "ment", "ance", "ung", "ing", "ion", "ers",
    "ies", "ed", "er", "es", "en", "em", "ly", "e", "s", "n", "y",
)  # fmt: skip
_LEAST_STEM: Final = 4


def words(text: str) -> list[str]:
    """Its words in lower case, in order, common ones included."""
    return _WORD.findall(text.lower())


def terms(text: str) -> set[str]:
    """Its words without common ones, so stemmed that `persist`, `persisted` and `persistence` meet. In German it holds
    as far as endings go."""
    return {_stem(word) for word in _WORD.findall(text.lower()) if word not in _COMMON}


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if len(word) - len(ending) >= _LEAST_STEM and word.endswith(ending):
            return word[: -len(ending)]
    return word
