"""Calls to other services over HTTP."""
