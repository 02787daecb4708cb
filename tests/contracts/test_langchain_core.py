"""What langchain-core does below `ChatOpenAI` and below the model that authors' tests talk to."""

import inspect
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, AsyncCallbackManager, get_usage_metadata_callback
from langchain_core.globals import set_debug
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables.config import ensure_config, set_config_context
from langchain_core.tracers import context as tracing
from langchain_core.tracers.context import collect_runs

from agentic_backend.llm.langchain import callbacks_configured


def test_handlers_come_from_the_run_and_from_the_model_and_nowhere_else() -> None:
    """agentic_backend/llm/langchain.py says whether anybody listens, as `configure` does."""
    assert not callbacks_configured()
    assert AsyncCallbackManager.configure(None, None, False).handlers == []
    handler = AsyncCallbackHandler()
    assert AsyncCallbackManager.configure([handler], None, False).handlers == [handler]
    assert AsyncCallbackManager.configure(None, [handler], False).handlers == [handler]
    assert callbacks_configured([handler])
    with set_config_context({"callbacks": [handler]}) as context:
        assert context.run(ensure_config).get("callbacks") == [handler]
        assert context.run(callbacks_configured)
    assert ensure_config().get("callbacks") is None


def listened() -> tuple[bool, bool]:
    """Whether `configure` finds a handler here, and what we say."""
    return bool(AsyncCallbackManager.configure(None, None, False).handlers), callbacks_configured()


def test_handlers_also_come_from_contexts_and_variables() -> None:
    """agentic_backend/llm/langchain.py asks where `configure` looks: `_configure_hooks`, and langsmith's context."""
    hooks = [(variable.name, name) for variable, _, kind, name in tracing._configure_hooks if kind or name]
    assert hooks == [], "a hook that a variable of the environment turns on"
    assert listened() == (False, False)
    with collect_runs():
        assert listened() == (True, True)
    with get_usage_metadata_callback():
        assert listened() == (True, True)
    set_debug(True)
    try:
        assert listened() == (True, True)
    finally:
        set_debug(False)
    assert listened() == (False, False)


def said_by(program: str, variable: str) -> subprocess.CompletedProcess[str]:
    """What a program prints where the variable is set. Nobody is told: the tracer's server is a closed port."""
    environment = os.environ | {
        "LANGSMITH_ENDPOINT": "http://127.0.0.1:9",
        "LANGSMITH_API_KEY": "none",
        variable: "true",
    }
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.servers
@pytest.mark.parametrize("variable", ["LANGCHAIN_TRACING_V2", "LANGSMITH_TRACING", "LANGCHAIN_TRACING"])
def test_variables_of_the_environment_count(variable: str) -> None:
    """agentic_backend/llm/langchain.py asks langsmith, which reads them, as `configure` does."""
    program = "from tests.contracts.test_langchain_core import listened; print(listened())"
    assert said_by(program, variable).stdout == "(True, True)\n"


@pytest.mark.servers
def test_a_context_of_langsmith_counts() -> None:
    """agentic_backend/llm/langchain.py asks langsmith, as `configure` does."""
    program = """
from langsmith.run_helpers import tracing_context
from tests.contracts.test_langchain_core import listened
with tracing_context(enabled=True):
    print(listened())
"""
    assert said_by(program, "UNUSED").stdout == "(True, True)\n"


@pytest.mark.servers
def test_a_variable_of_the_first_tracer_makes_no_listener() -> None:
    """agentic_backend/llm/langchain.py does not look for it: langchain has no such tracer any more, and refuses it."""
    program = "from tests.contracts.test_langchain_core import listened; listened()"
    assert "no longer supported" in said_by(program, "LANGCHAIN_HANDLER").stderr
    program = "from agentic_backend.llm.langchain import callbacks_configured; print(callbacks_configured())"
    assert said_by(program, "LANGCHAIN_HANDLER").stdout == "False\n"


def test_a_chat_model_is_made_by_these_methods() -> None:
    """agentic_backend/llm/langchain.py overrides them, with these parameters, for agentic_backend/testing/model.py,
    agentic_backend/llm/providers/guarded.py, agentic_backend/llm/group.py and agentic_backend/agent/hosted/model.py,
    which override `_astream`; the second and the last also call that of the model inside."""
    assert BaseChatModel.__abstractmethods__ == {"_generate", "_llm_type"}
    for method in (BaseChatModel._agenerate, BaseChatModel._astream):
        assert list(inspect.signature(method).parameters) == ["self", "messages", "stop", "run_manager", "kwargs"]


async def test_chunks_are_put_together_to_one_answer() -> None:
    """agentic_backend/llm/langchain.py makes the whole answer of the stream by `agenerate_from_stream`."""

    async def pieces() -> AsyncIterator[ChatGenerationChunk]:
        for piece in ("a", "b"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    (generation,) = (await agenerate_from_stream(pieces())).generations
    assert generation.message.content == "ab"
