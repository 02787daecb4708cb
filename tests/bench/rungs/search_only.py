"""Rico without his reranker, as an agent module: what a search adds to a turn, without what a rerank adds to it."""

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from agentic_backend.agent.kit import AgentKit, Graph
from agentic_backend.agent.rag import RagState, Rico, Tuning
from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.settings import AgentSettings


def build(settings: AgentSettings, kit: AgentKit) -> Graph:
    """Search, keep the best of retrieval, answer. Raises ValueError where the kit has no client of knowledge flow."""
    if kit.knowledge is None:
        raise ValueError(f"agent {settings.id} needs knowledge flow")
    tuning = Tuning.of(settings)
    rico = Rico(tuning, kit, kit.knowledge)

    async def search(state: RagState, runtime: Runtime[AgentRun]) -> RagState:
        found = await rico.search(state, runtime)
        return {**found, "hits": found["hits"][: tuning.top_r], "reranked": False}

    graph = StateGraph(RagState, context_schema=AgentRun, input_schema=AgentState)
    graph.add_node("search", search)
    graph.add_node("answer_with_sources", rico.answer_with_sources)
    graph.add_edge(START, "search")
    graph.add_edge("search", "answer_with_sources")
    graph.add_edge("answer_with_sources", END)
    return graph.compile(name=settings.id)
