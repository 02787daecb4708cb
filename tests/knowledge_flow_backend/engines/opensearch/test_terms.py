"""Both engines take names of code apart in the same way."""

import pytest

from knowledge_flow_backend.engines.opensearch.body import spelled
from tests.knowledge_flow_backend.corpus import Corpus

TEXTS = [
    "call asyncio.gather(*aws) now",
    "__init__ and max_size_ of os.path.join, e.g. <b>bold</b>",
    "python 3.11.2 at http://docs.example.com/a-b?c=d&e",
    "a.b.c.d.e.f.g.h.i.j.k",
    "....___....",
    "x" * 300 + "_y",
    "Größe_x und naïve.café",
    "it's \\ 'quoted' : % text",
]


def test_a_name_stands_in_its_parts_its_tails_and_whole() -> None:
    names = ["join_all", "os.path.join_all", "path.join_all"]
    assert spelled("os.path.join_all()").split() == ["os", "path", "join", "all", *names]
    assert spelled("plain words").split() == ["plain", "words"]


@pytest.mark.parametrize("text", TEXTS)
async def test_postgres_takes_the_same_names(corpus: Corpus, text: str) -> None:
    ((lexemes,),) = corpus.sql("SELECT tsvector_to_array(search_words(%s))", (text,))
    names = {word.lower() for word in spelled(text).split() if "." in word or "_" in word}
    assert {lexeme for lexeme in lexemes if "." in lexeme or "_" in lexeme} == names
