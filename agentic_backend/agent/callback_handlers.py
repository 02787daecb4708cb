"""Callback handlers of LangChain that a configuration names: made once, heard by every run of every agent."""

from collections.abc import Sequence
from importlib import import_module

from langchain_core.callbacks import BaseCallbackHandler


class HandlerUnusable(ValueError):
    """A callback handler of the configuration cannot be made. The text names it."""


def load_handlers(paths: Sequence[str]) -> list[BaseCallbackHandler]:
    """A handler of each class, `package.module:Class`, made without arguments. Raises `HandlerUnusable`."""
    return [_made(path) for path in paths]


def _made(path: str) -> BaseCallbackHandler:
    module, colon, name = path.partition(":")
    if not colon:
        raise HandlerUnusable(f"tracing.callbacks: {path} must be package.module:Class")
    try:
        handler = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as failure:
        raise HandlerUnusable(f"tracing.callbacks: {path} cannot be made: {type(failure).__name__}") from failure
    if not isinstance(handler, BaseCallbackHandler):
        raise HandlerUnusable(f"tracing.callbacks: {path} makes no BaseCallbackHandler")
    return handler
