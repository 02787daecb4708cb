"""Lets the `ChatOpenAI` models of people's graphs read their streams as plain JSON.

The SDK makes nested pydantic objects of every chunk, and langchain-openai at once makes dicts of them again: half of
what a streamed token costs such a model (docs/perf-log.md). It takes dicts as they are. So the same client of the SDK
sends the same request, with its authentication, retries, timeouts and exceptions, and only its last step is left out.
"""

import gc
from typing import Any, Final

_AS_OBJECTS: Final = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
"""Arguments of `create` that are options of the request: a call that has one goes the SDK's way."""


class PlainStreams:
    """The SDK's `chat.completions` whose streams are of dicts. Everything else is the SDK's."""

    def __init__(self, client: Any) -> None:
        """`client` is an `AsyncOpenAI`."""
        self._client = client
        self._completions = client.chat.completions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._completions, name)

    async def create(self, **payload: Any) -> Any:
        """`AsyncCompletions.create`. Raises as that does."""
        if not payload.get("stream") or not _AS_OBJECTS.isdisjoint(payload):
            return await self._completions.create(**payload)
        from openai import AsyncStream

        return await self._client.post(
            "/chat/completions", cast_to=object, body=payload, stream=True, stream_cls=AsyncStream[object]
        )


def read_streams_plainly() -> int:
    """Have all `ChatOpenAI` models of this process read their streams so; returns how many were found now.

    Models of a custom class, or with a client that their author built, stay as they are. Call it once the graphs are
    loaded: such models sit in their modules and closures, and only the collector knows all of those.
    """
    from langchain_openai import ChatOpenAI
    from openai import AsyncOpenAI
    from openai.resources.chat.completions import AsyncCompletions

    found = 0
    for model in gc.get_objects():
        if type(model) is not ChatOpenAI or type(model.root_async_client) is not AsyncOpenAI:
            continue
        if type(model.async_client) is AsyncCompletions:
            model.async_client = PlainStreams(model.root_async_client)
            found += 1
        if "stream_chunk_timeout" not in model.model_fields_set:
            # A task for each token on Python 3.11; `deadlines.turn_s` bounds the turn.
            model.stream_chunk_timeout = None
    return found
