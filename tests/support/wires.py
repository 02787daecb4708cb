"""The wires that the mock model speaks, and the providers whose clients speak them."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.mock_llm import MockModel


@dataclass(frozen=True, slots=True)
class WireOf:
    """A provider with what its models need to be called, and to show their reasoning."""

    provider: str
    path: str = ""
    """Below the address of the mock model."""
    options: dict[str, Any] = field(default_factory=dict)
    reasons: bool = True
    """Whether its clients hand on what a model says while it reasons."""
    counts: frozenset[str] = frozenset({"cached_tokens", "reasoning_tokens"})
    """The parts of its tokens that it counts."""

    def model(self, mock_llm: MockModel, name: str, **settings: Any) -> dict[str, Any]:
        """A model of the configuration."""
        root = mock_llm.base_url.removesuffix("/v1")
        own = {"options": self.options} if self.options else {}
        called = {"base_url": root + self.path, "api_key": "a-key", "max_retries": 0, **own, **settings}
        return {"provider": self.provider, "name": name, "settings": called}


WIRES = {
    "chat": WireOf("openai", "/v1"),
    "responses": WireOf("openai_responses", "/v1", {"reasoning": {"effort": "low", "summary": "auto"}}),
    "messages": WireOf("anthropic", "", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096}),
    "ollama": WireOf("ollama", "", {"reasoning": True}, counts=frozenset()),
    "azure": WireOf("azure_openai", "", {"api_version": "2024-10-21"}, reasons=False),
}
