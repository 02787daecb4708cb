"""The names of traces, as dashboards and queries of others know them: a change is one of their version, too."""

from agentic_backend.tracing import names

GOLDEN = {
    "CONVENTIONS": "1.41.0",
    "SCHEMA_URL": "https://opentelemetry.io/schemas/1.41.0",
    "SCOPE": "turnwise.ledger",
    "OPERATION": "gen_ai.operation.name",
    "AGENT_ID": "gen_ai.agent.id",
    "AGENT_NAME": "gen_ai.agent.name",
    "CONVERSATION": "gen_ai.conversation.id",
    "MODEL": "gen_ai.request.model",
    "INPUT_TOKENS": "gen_ai.usage.input_tokens",
    "OUTPUT_TOKENS": "gen_ai.usage.output_tokens",
    "CACHED_TOKENS": "gen_ai.usage.cache_read.input_tokens",
    "REASONING_TOKENS": "gen_ai.usage.reasoning.output_tokens",
    "COST": "gen_ai.usage.cost",
    "TOOL": "gen_ai.tool.name",
    "INPUT": "gen_ai.input.messages",
    "OUTPUT": "gen_ai.output.messages",
    "SESSION": "session.id",
    "USER": "user.id",
    "ERROR": "error.type",
    "LEDGER_PHASE": "turnwise.phase",
    "EXCHANGE": "turnwise.exchange_id",
    "REQUEST": "turnwise.request_id",
    "STATUS": "turnwise.status",
    "DURABLE": "turnwise.durable",
    "TTFT_MS": "turnwise.time_to_first_token_ms",
    "UNATTRIBUTED_MS": "turnwise.unattributed_ms",
    "DROPPED_ROWS": "turnwise.dropped_rows",
    "TOOL_SERVER": "turnwise.tool.server",
}


def test_the_names_are_those_of_their_version() -> None:
    assert {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)} == GOLDEN


def test_the_operations_are_those_of_their_version() -> None:
    assert {phase: operation.name for phase, operation in names.OPERATIONS.items()} == {
        "llm_invoke": "chat",
        "tool_call": "execute_tool",
        "vector_search": "retrieval",
        "kf_embed_query": "embeddings",
    }
    assert names.INVOKE_AGENT.name == "invoke_agent"
