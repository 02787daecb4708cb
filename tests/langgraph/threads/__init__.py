"""LangGraph's newer hook for React, in a process of Node."""
