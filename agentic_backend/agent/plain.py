"""Georges: answers from the conversation and what the model knows."""

from typing import Final

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from agentic_backend.agent.answering import answer_or_calls, conversation, with_language
from agentic_backend.agent.kit import AgentKit, Graph
from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.settings import AgentSettings, FieldSpec, Restart

SYSTEM_PROMPT: Final = """\
You are Georges, a general assistant. Answer what was asked, correctly and briefly, in the language of the question.
Use Markdown where structure helps. Take earlier messages of the conversation into account.
If you do not know, or the question lacks what an answer needs, say so; never invent facts, numbers or sources."""
RESTART: Final[Restart] = "from_question"
CREDENTIALS: Final = False
CLIENT_TOOLS: Final = True
"""With `client_tools` its model may call functions of the client."""
IMAGES: Final = True
"""Its model sees the images of questions."""
FIELDS: Final = (FieldSpec(key="prompts.system", type="prompt", title="System prompt"),)
"""The tunable fields; the default is the prompt above."""


def build(settings: AgentSettings, kit: AgentKit) -> Graph:
    """A graph of one node: one model call. Tunable: `prompts.system`."""
    system = str(settings.tuned("prompts.system", SYSTEM_PROMPT))

    async def answer(state: AgentState, runtime: Runtime[AgentRun]) -> AgentState:  # noqa: ARG001 # langgraph calls it by name
        run = runtime.context
        messages = conversation(with_language(system, run.language), run)
        model = kit.model_for(run)
        return {
            "answer": await answer_or_calls(model, messages, run),
        }

    graph = StateGraph(AgentState, context_schema=AgentRun)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(name=settings.id)
