"""Turns of sessions: who may run, what happens in a turn, what is kept of it."""
