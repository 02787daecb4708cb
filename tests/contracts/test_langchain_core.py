"""What langchain-core does below `ChatOpenAI` and below the model that authors' tests talk to."""

import inspect
from collections.abc import AsyncIterator

from langchain_core.callbacks import AsyncCallbackHandler, AsyncCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables.config import ensure_config, set_config_context


def test_handlers_come_from_the_run_and_from_the_model_and_nowhere_else() -> None:
    """agentic_backend/llm/models.py streams text as text only where nobody listens, which `configure` tells."""
    assert AsyncCallbackManager.configure(None, None, False).handlers == []
    handler = AsyncCallbackHandler()
    assert AsyncCallbackManager.configure([handler], None, False).handlers == [handler]
    assert AsyncCallbackManager.configure(None, [handler], False).handlers == [handler]
    with set_config_context({"callbacks": [handler]}) as context:
        assert context.run(ensure_config).get("callbacks") == [handler]
    assert ensure_config().get("callbacks") is None


def test_a_chat_model_is_made_by_these_methods() -> None:
    """agentic_backend/testing/model.py overrides them, with these parameters."""
    assert BaseChatModel.__abstractmethods__ == {"_generate", "_llm_type"}
    for method in (BaseChatModel._agenerate, BaseChatModel._astream):
        assert list(inspect.signature(method).parameters) == ["self", "messages", "stop", "run_manager", "kwargs"]


async def test_chunks_are_put_together_to_one_answer() -> None:
    """agentic_backend/testing/model.py makes its whole answer of its stream by `agenerate_from_stream`."""

    async def pieces() -> AsyncIterator[ChatGenerationChunk]:
        for piece in ("a", "b"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    (generation,) = (await agenerate_from_stream(pieces())).generations
    assert generation.message.content == "ab"
