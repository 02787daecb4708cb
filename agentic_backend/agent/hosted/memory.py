"""What hosted graphs remember of a user, for callers outside of a turn."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from langgraph.store.base import Item

from agentic_backend.agent.hosted.state import GraphState, UserStore
from agentic_backend.errors import HistoryUnavailable


class UserMemory:
    """Items of a user by namespace and key: the same that their turns read and write through `UserStore`.

    Every method takes the user's id, and may raise `NotKept`; without a place for it, `HistoryUnavailable`.
    """

    def __init__(self, state: GraphState | None) -> None:
        """`state` is None where hosted graphs keep nothing."""
        self._state = state

    async def put(self, user_id: str, namespace: Sequence[str], key: str, value: dict[str, Any]) -> None:
        """Store an item, in place of the one that is there."""
        await self._of(user_id).aput(tuple(namespace), key, value)

    async def get(self, user_id: str, namespace: Sequence[str], key: str) -> dict[str, Any] | None:
        """The item: namespace, key, value, created_at and updated_at. None where there is none."""
        found = await self._of(user_id).aget(tuple(namespace), key)
        return None if found is None else _item_dict(found)

    async def delete(self, user_id: str, namespace: Sequence[str], key: str) -> None:
        """Delete an item, if it is there."""
        await self._of(user_id).adelete(tuple(namespace), key)

    async def search(
        self, user_id: str, prefix: Sequence[str], values: Mapping[str, Any] | None, limit: int, offset: int
    ) -> list[dict[str, Any]]:
        """Items below a namespace, the newest first. `values` are those that an item must have, or conditions: `$eq`,
        `$ne`, `$gt`, `$gte`, `$lt` and `$lte`."""
        conditions = None if values is None else dict(values)
        found = await self._of(user_id).asearch(tuple(prefix), filter=conditions, limit=limit, offset=offset)
        return [{**_item_dict(item), "score": item.score} for item in found]

    async def namespaces(
        self,
        user_id: str,
        prefix: Sequence[str],
        suffix: Sequence[str],
        max_depth: int | None,
        limit: int,
        offset: int,
    ) -> list[list[str]]:
        """Namespaces that have items, in order, cut to `max_depth` labels. A label `*` stands for any one."""
        found = await self._of(user_id).alist_namespaces(
            prefix=tuple(prefix) or None,
            suffix=tuple(suffix) or None,
            max_depth=max_depth,
            limit=limit,
            offset=offset,
        )
        return [list(one) for one in found]

    def _of(self, user_id: str) -> UserStore:
        if self._state is None:
            raise HistoryUnavailable("hosted graphs keep nothing here")
        return UserStore(self._state, lambda: user_id)


def _item_dict(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.astimezone(UTC).isoformat(),
        "updated_at": item.updated_at.astimezone(UTC).isoformat(),
    }
