"""What a run's callbacks say of the calls of its models."""

from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from prometheus_client import CollectorRegistry

from agentic_backend.agent.hosted.speech import Speech
from agentic_backend.agent.hosted.watch import Watch
from agentic_backend.llm.observer import Metered
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.tracing.spans import uses_of
from backend_kit.kpi import Kpi, Ledger


async def test_tokens_are_those_of_the_call_that_used_them() -> None:
    """Also where another one of the same model goes on beside it."""
    kpi = Kpi(CollectorRegistry(), service="agentic")
    ledger = Ledger(kpi)
    watch = Watch(Speech(lambda _: None), Metered(AgenticMetrics(kpi.registry, kpi)), {}, lambda _: None)
    first, beside = uuid4(), uuid4()
    with ledger.activate():
        for call in (first, beside):
            watch.on_llm_start({}, [], run_id=call, metadata={"ls_model_name": "m"})
        for call, tokens in ((first, 100), (beside, 7)):
            use = UsageMetadata(input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
            message = AIMessage("yes", usage_metadata=use)
            watch.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]), run_id=call)
    uses, rest = uses_of(ledger.rows(), ledger.spent, ledger.started)
    assert ({place: use.input_tokens for place, use in uses.items()}, rest) == ({0: 100, 1: 7}, [])
