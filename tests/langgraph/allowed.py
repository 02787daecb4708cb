"""What is not as recorded, and why."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tests.langgraph.compare import END, Difference
from tests.langgraph.recorded import NOT_ASKED

_INTERNAL: Final = "of the inside of the recorded server, or of its account"
_NOT_HERE: Final = "not here, as docs/langgraph.md#what-is-missing says"
_ERRORS: Final = "our errors say which, where and in which request, at every door"
_STREAMS: Final = "here a model streams whatever its client wants to see, and what it used is known"
_KEPT: Final = "an input is kept, and told, as messages, whatever shape it was sent in"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference: patterns of the call, its kind and the path of keys. `of` is whose it is: that of a `hosted` graph,
    of an agent of `ours`, or of both."""

    call: str
    kind: str
    at: str
    reason: str
    of: str = "*"

    def covers(self, one: Difference, of: str) -> bool:
        """Whether it is this one."""
        patterns = ((one.call, self.call), (one.kind, self.kind), (one.at, self.at), (of, self.of))
        return all(fnmatchcase(value, pattern.replace("[]", "[[]]")) for value, pattern in patterns)


ALLOWED: Final = (
    Allowed("*", NOT_ASKED, "", "the event `end` says what the client would ask for, and saves the request"),
    Allowed("*", "event", END, "saves that request"),
    *(Allowed("*", "extra", key, _ERRORS) for key in ("code", "field", "request_id")),
    *(
        Allowed(f"runs.stream {mode}", "status", "", _NOT_HERE)
        for mode in ("messages", "events", "debug", "tasks", "checkpoints")
    ),
    *(Allowed(call, "status", "", _NOT_HERE) for call in ("crons.*", "runs.create_batch")),
    Allowed("runs.*", "missing", "*kwargs.config.configurable.*", _INTERNAL),
    Allowed("runs.list", "missing", "*kwargs.config.metadata.*", _INTERNAL),
    Allowed("threads.*", "missing", "*metadata.created_by", _INTERNAL),
    Allowed("runs.stream *", "extra", "updates:model.messages[].response_metadata.finish_reason", _STREAMS, "hosted"),
    Allowed("runs.stream *", "type", "updates:model.messages[].usage_metadata", _STREAMS, "hosted"),
    Allowed("threads.get_state checkpoint_id", "request", "", "the id of a graph's state says its line, too", "hosted"),
    Allowed("threads.get_history full", "extra", "[].metadata.*", "a state says of which run and assistant it is"),
    Allowed("threads.*", "missing", "*metadata.langgraph_*", _INTERNAL),
    Allowed("threads.*", "missing", "*metadata.run_attempt", _INTERNAL),
    Allowed("threads.*", "missing", "*metadata.user_id", _INTERNAL),
    Allowed("runs.*", "missing", "*metadata.user", "metadata of a thread are not those of its runs"),
    Allowed("runs.*", "missing", "*kwargs.input.messages[].role", _KEPT),
    Allowed("runs.*", "extra", "*kwargs.input.messages[].*", _KEPT),
    Allowed("runs.*", "extra", "*ledger", "where the time of the run went"),
    Allowed("runs.wait stateless", "header", "*location", "there is no thread to name"),
    Allowed("runs.join_stream cancelled", "events", "", "what a stopped run said is told as well"),
    Allowed(
        "runs.stream interrupting", "extra", "messages:[].*", "a message that comes whole is told as its only chunk"
    ),
    Allowed(
        "threads.search by graph_id", "type", "[].error", "the first run says what a thread's graph is, not the last"
    ),
    Allowed("assistants.*", "status", "", "an agent of ours takes its tunable fields as config, and no others", "ours"),
    Allowed("runs.stream custom", "events", "", "this agent sends none", "ours"),
    Allowed("runs.stream *", "extra", "updates:agent", "its node", "ours"),
    Allowed("runs.stream *", "missing", "updates:model", "its node", "ours"),
)


def not_allowed(found: list[Difference], of: str) -> list[Difference]:
    """Those that nothing here explains."""
    return [one for one in found if not any(entry.covers(one, of) for entry in ALLOWED)]


def unused(found: list[tuple[Difference, str]]) -> list[Allowed]:
    """What is allowed and was not found."""
    return [entry for entry in ALLOWED if not any(entry.covers(one, of) for one, of in found)]
