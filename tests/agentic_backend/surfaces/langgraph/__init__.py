"""Tests of the door for LangGraph's clients."""
