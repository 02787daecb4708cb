"""What is asked of knowledge flow (docs/search.md#search). Values only."""

from dataclasses import dataclass
from typing import Any, Final, Literal

SearchPolicy = Literal["hybrid", "semantic", "strict"]

MAX_QUESTION_CHARS: Final = 4_000
"""What is searched for: an embedder reads the first few hundred words, and a longer list of words finds everything."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """One search. `library_ids` and `document_uids` narrow the corpus, () does not; what the caller may not read is
    never found, whatever they name. `session_id` gives the attachments of that session their place."""

    question: str
    top_k: int
    library_ids: tuple[str, ...] = ()
    document_uids: tuple[str, ...] = ()
    policy: SearchPolicy | None = None
    session_id: str | None = None
    include_session_scope: bool = True
    include_corpus_scope: bool = True

    def body(self) -> dict[str, Any]:
        """The JSON body of `/vector/search`; what says nothing is left out."""
        body: dict[str, Any] = {
            "question": self.question[:MAX_QUESTION_CHARS],
            "top_k": self.top_k,
            "include_session_scope": self.include_session_scope,
            "include_corpus_scope": self.include_corpus_scope,
        }
        if self.library_ids:
            body["document_library_tags_ids"] = self.library_ids
        if self.document_uids:
            body["document_uids"] = self.document_uids
        if self.policy is not None:
            body["search_policy"] = self.policy
        if self.session_id is not None and self.include_session_scope:
            body["session_id"] = self.session_id
        return body
