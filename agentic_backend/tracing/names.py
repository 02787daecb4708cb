"""The names that traces use, in one place and of one version, and which phases of a ledger are which operations.

`gen_ai.*`, `error.type`, `session.id` and `user.id` are those of OpenTelemetry's semantic conventions, whose GenAI part
is still in development: a later version of them is a change of this file and of its golden test. `gen_ai.usage.cost` is
none of theirs, but what Langfuse reads. `turnwise.*` is ours.
"""

from types import MappingProxyType
from typing import Final, NamedTuple

CONVENTIONS: Final = "1.41.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{CONVENTIONS}"
SCOPE: Final = "turnwise.ledger"

OPERATION: Final = "gen_ai.operation.name"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
COST: Final = "gen_ai.usage.cost"
TOOL: Final = "gen_ai.tool.name"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"

SESSION: Final = "session.id"
USER: Final = "user.id"
ERROR: Final = "error.type"

LEDGER_PHASE: Final = "turnwise.phase"
EXCHANGE: Final = "turnwise.exchange_id"
REQUEST: Final = "turnwise.request_id"
STATUS: Final = "turnwise.status"
DURABLE: Final = "turnwise.durable"
TTFT_MS: Final = "turnwise.time_to_first_token_ms"
UNATTRIBUTED_MS: Final = "turnwise.unattributed_ms"
DROPPED_ROWS: Final = "turnwise.dropped_rows"
TOOL_SERVER: Final = "turnwise.tool.server"


class Operation(NamedTuple):
    """What a phase is by the conventions. `subject` is the attribute that stands behind the operation in a span's name;
    a `remote` one waits for another process. Two that are `alone` never hold one another: what overlaps ran beside."""

    name: str
    subject: str = ""
    remote: bool = False
    alone: bool = False


INVOKE_AGENT: Final = Operation("invoke_agent", AGENT_NAME)
CHAT: Final = Operation("chat", MODEL, remote=True, alone=True)
EXECUTE_TOOL: Final = Operation("execute_tool", TOOL, alone=True)
RETRIEVAL: Final = Operation("retrieval", alone=True)
EMBEDDINGS: Final = Operation("embeddings")

OPERATIONS: Final = MappingProxyType(
    {
        "llm_invoke": CHAT,
        "tool_call": EXECUTE_TOOL,
        "vector_search": RETRIEVAL,
        "kf_embed_query": EMBEDDINGS,
    }
)
"""By phase. A phase that is not here is a span of its own name."""
REMOTE: Final = frozenset({"kf_vector_search", "kf_passage", "kf_markdown", "db_statement", "ask_commit"})
"""Further phases that wait for another process."""
