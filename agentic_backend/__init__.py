"""The service that runs turns: sockets, sessions, LangGraph agents, fire-and-forget history."""

import os

# Before LangGraph is imported, which reads it then: a stored state makes only types that its graph's schemas name.
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
