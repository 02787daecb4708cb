"""Whether anybody listens to langchain's callbacks: a tracer, a handler of a caller, `set_debug`."""

from langchain_core import globals as langchain_globals
from langchain_core.callbacks import Callbacks
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tracers import context as tracing
from langchain_core.utils.env import env_var_is_set
from langsmith import utils as langsmith_utils


def callbacks_configured(own: Callbacks = None) -> bool:
    """Whether a run that began here would call any handler; `own` are those of the object that would run.

    `AsyncCallbackManager.configure` finds out by making managers, in 9 µs a call and twice a turn. This asks where it
    looks; `tests/contracts` holds the two together.
    """
    if own or langchain_globals.get_debug() or tracing.tracing_v2_callback_var.get() is not None:
        return True
    if langsmith_utils.tracing_is_enabled():
        return True
    if var_child_runnable_config.get() is not None and ensure_config().get("callbacks"):
        return True
    return any(
        var.get() is not None or (variable is not None and kind is not None and env_var_is_set(variable))
        for var, _, kind, variable in tracing._configure_hooks
    )
