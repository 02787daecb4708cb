"""The service that runs turns: sockets, sessions, LangGraph agents, fire-and-forget history."""
