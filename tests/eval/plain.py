"""A plain BM25 by a library of its own over the same chunks: what a search must beat to be worth its trouble."""

from collections.abc import Sequence

import bm25s  # type: ignore[import-untyped]

from tests.eval.corpus import Divided
from tests.eval.scores import DEEP


class PlainBm25:
    """bm25s with its defaults (Lucene's formula, words of two and more letters or digits, English stop words), over
    the text that is embedded: title, section and content."""

    def __init__(self, divided: Sequence[Divided]) -> None:
        self._uids = [chunk.uid for one in divided for chunk in one.chunks]
        self._index = bm25s.BM25()
        texts = [text for one in divided for text in one.texts()]
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def search(self, questions: Sequence[str]) -> list[list[str]]:
        """The uids of the best chunks of each question, best first; those without a word of it are not among them."""
        asked = bm25s.tokenize(list(questions), return_ids=False, show_progress=False)
        places, weights = self._index.retrieve(asked, k=min(DEEP, len(self._uids)), show_progress=False, n_threads=1)
        return [
            [self._uids[place] for place, weight in zip(row, weighed, strict=True) if weight > 0]
            for row, weighed in zip(places, weights, strict=True)
        ]
