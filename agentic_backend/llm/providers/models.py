"""The chat models of a process, whichever their providers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel

from agentic_backend import settings
from agentic_backend.llm.endpoint import connections_of, endpoint_of
from agentic_backend.llm.guard import Guard
from agentic_backend.llm.models import ModelPool
from agentic_backend.llm.observer import METERED, LlmObserver, Unobserved
from agentic_backend.llm.providers.guarded import GuardedChatModel
from agentic_backend.llm.providers.make import Close, make
from backend_kit.client.connections import Connections
from backend_kit.wire import dumps


class Models(ModelPool):
    """A `ModelPool` that also makes models of other providers than `openai`, from their settings."""

    def __init__(
        self,
        connections: Connections | None = None,
        observer: LlmObserver | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **more: Any,
    ) -> None:
        """`more` is what `ModelPool` takes beside this."""
        super().__init__(connections, observer, clock=clock, sleep=sleep, **more)
        self._told = observer or Unobserved()
        self._timing: dict[str, Any] = {"clock": clock, "sleep": sleep}
        self._foreign: dict[bytes, GuardedChatModel] = {}
        self._closes: list[Close] = []

    def prepare(self, configured: Iterable[settings.ChatModel], deadlines: settings.Deadlines) -> None:
        """Make the models of other providers, whose packages take seconds to import: call it in a thread before a
        loop asks `model_of` for them. Raises `ModelUnusable`."""
        for model in configured:
            if model.provider != "openai":
                self.model_of(model, deadlines)

    def model_of(self, configured: settings.ChatModel, deadlines: settings.Deadlines) -> BaseChatModel:
        """The model, made on first use. Raises `ModelUnusable`."""
        if configured.provider == "openai":
            return self.chat_model(endpoint_of(configured, deadlines))
        how = configured.settings
        key = dumps([configured.model_dump(mode="json"), how.api_key and how.api_key.get_secret_value()])
        model = self._foreign.get(key)
        if model is None:
            made = make(configured, connections_of(configured))
            self._closes += made.closes
            guard = Guard(endpoint_of(configured, deadlines), self._told, **self._timing)
            model = self._foreign[key] = GuardedChatModel(
                inner=made.model,
                guard=guard,
                ends_with_reason=made.ends_with_reason,
                limit_field=made.limit_field,
                metadata={METERED: True},
                cache=False,
            )
        return model

    async def aclose(self) -> None:
        """Close all connections. Calls that still run fail."""
        self._foreign.clear()
        closes, self._closes = self._closes, []
        for close in closes:
            await close()
        await super().aclose()
