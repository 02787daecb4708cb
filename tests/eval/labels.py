"""Which chunks answer a query: passages of the manual against the chunks of one division."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from knowledge_flow_backend.index import Chunk
from tests.eval.corpus import Divided, document_uid
from tests.eval.passages import Passage
from tests.eval.queries import Query
from tests.eval.scores import Found, Scores, scores


class Labels:
    """The judgements for one division of the manual into chunks."""

    def __init__(self, divided: Iterable[Divided]) -> None:
        self._chunks = {one.document.uid: one.chunks for one in divided}
        self._lengths = {chunk.uid: chunk.end - chunk.start for chunks in self._chunks.values() for chunk in chunks}

    def covering(self, query: Query) -> dict[str, frozenset[int]]:
        """By chunk uid: the numbers of the query's targets that the chunk covers."""
        found: dict[str, set[int]] = defaultdict(set)
        for number, target in enumerate(query.targets):
            for chunk in self._chunks.get(document_uid(target.page), ()):
                if covers(chunk, target):
                    found[chunk.uid].add(number)
        return {uid: frozenset(numbers) for uid, numbers in found.items()}

    def judged(self, query: Query, uids: Sequence[str]) -> Scores:
        """The scores of hits, best first."""
        covering = self.covering(query)
        found: Found = [covering.get(uid, frozenset()) for uid in uids]
        lengths = [self._lengths[uid] for uid in uids]
        return scores(found, lengths, list(covering.values()), len(query.targets))


def covers(chunk: Chunk, target: Passage) -> bool:
    """Whether a chunk answers for a passage: it holds its beginning, or half of the chunk lies in it."""
    within = min(chunk.end, target.end) - max(chunk.start, target.start)
    return chunk.start <= target.start < chunk.end or 2 * within >= chunk.end - chunk.start
