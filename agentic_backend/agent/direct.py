"""One model call without a graph: the rung below an agent in the bench's ladder."""

from langchain_core.messages import HumanMessage

from agentic_backend.agent.answering import stream_answer
from agentic_backend.agent.kit import AgentKit
from agentic_backend.agent.run import AgentAnswer, AgentRun


class DirectAnswer:
    """Sends the message alone to the model and streams what it says."""

    def __init__(self, kit: AgentKit) -> None:
        self._kit = kit

    async def run(self, run: AgentRun) -> AgentAnswer:
        """Answer the turn's message; its history is not used. Raises `TurnFailed`."""
        messages = [HumanMessage(run.message)]
        return await stream_answer(self._kit.chat_model, messages, run.emit, fallback_model_name=self._kit.model_name)
