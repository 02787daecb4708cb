"""Rico without his reranker, as an agent module: what a search adds to a turn, without what a rerank adds to it."""

from dataclasses import replace

from langgraph.graph import END, START, StateGraph

from agentic_backend.agent.kit import AgentKit, Graph
from agentic_backend.agent.rag import RagState, Rico, Tuning
from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.knowledge import Caller, Hit, KnowledgeClient, SearchQuery
from agentic_backend.settings import AgentSettings


class _Unreranked(KnowledgeClient):
    """Another client in the place of the kit's, for the same service."""

    async def search(self, query: SearchQuery, caller: Caller) -> list[Hit]:
        hits = await super().search(replace(query, top_r=None), caller)
        return hits[: query.limit]


def build(settings: AgentSettings, kit: AgentKit) -> Graph:
    """Search, keep the best of retrieval, answer. Raises ValueError where the kit has no client of knowledge flow."""
    if kit.knowledge is None:
        raise ValueError(f"agent {settings.id} needs knowledge flow")
    tuning = Tuning.of(settings)
    rico = Rico(tuning, kit, _Unreranked(kit.knowledge.endpoint))
    graph = StateGraph(RagState, context_schema=AgentRun, input_schema=AgentState)
    graph.add_node("search", rico.search)
    graph.add_node("answer_with_sources", rico.answer_with_sources)
    graph.add_edge(START, "search")
    graph.add_edge("search", "answer_with_sources")
    graph.add_edge("answer_with_sources", END)
    return graph.compile(name=settings.id)
