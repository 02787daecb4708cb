"""LangGraph's own clients, unmodified, at the door of LangGraph's Agent Server API."""
