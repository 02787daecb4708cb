"""Bodies of the routes of assistants, and assistants as clients of LangGraph's API read them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from agentic_backend.agent.versions import AgentVersion, VersionChange
from agentic_backend.chat.frames import CleanText
from agentic_backend.errors import TooLarge
from agentic_backend.settings import AgentSettings
from agentic_backend.surfaces.langgraph.bodies import JsonObject, Offset, RequestBody
from agentic_backend.surfaces.langgraph.errors import Faulty
from agentic_backend.surfaces.langgraph.names import assistant_id_of, is_uuid
from backend_kit.wire import dumps, storable

MAX_BYTES: Final = 64 * 1024
"""Of an assistant's config, context and metadata as JSON."""
_CONFIGURABLE: Final = "configurable"
_OF_CONFIG: Final = frozenset({_CONFIGURABLE, "tags"})
_MAX_LISTED: Final = 1000
_MAX_NAME: Final = 128

_Limit = Annotated[int, Field(ge=1, le=_MAX_LISTED)]
_Id = Annotated[CleanText, Field(min_length=1, max_length=128)]
_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80), AfterValidator(storable)]
_Words = Annotated[CleanText, Field(max_length=2000)]
_Shown = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "created_at",
    "updated_at",
    "metadata",
    "version",
]


class CountAssistants(RequestBody):
    """A filter: assistants with at least this metadata, of this graph, with this text in their name, ignoring case."""

    metadata: JsonObject | None = None
    graph_id: _Id | None = None
    name: _Words | None = None

    def fits(self, assistant: Mapping[str, Any]) -> bool:
        """Whether an assistant is one of them."""
        if self.graph_id is not None and assistant["graph_id"] != self.graph_id:
            return False
        if self.name is not None and self.name.casefold() not in assistant["name"].casefold():
            return False
        return contains(assistant["metadata"], self.metadata or {})


class SearchAssistants(CountAssistants):
    """A page of those, in an order; without `sort_by`, that of the agents."""

    limit: _Limit = 10
    offset: Offset = 0
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: Literal["asc", "desc", "ASC", "DESC"] | None = None
    select: Annotated[list[_Shown], Field(max_length=20)] | None = None


class ListVersions(RequestBody):
    """A page of an assistant's versions that have at least this metadata."""

    metadata: JsonObject | None = None
    limit: _Limit = 10
    offset: Offset = 0


class ChangeAssistant(RequestBody):
    """A change of an assistant."""

    graph_id: _Id | None = None
    config: JsonObject | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    name: _Name | None = None
    description: _Words | None = None

    def change(self) -> VersionChange:
        """As the agents know it. Raises `Faulty` or `TooLarge`."""
        config, context = self.config, self.context
        if config is not None or context is not None:
            config, context = _values(config or {}, context or {})
        if len(dumps([config, context, self.metadata])) > MAX_BYTES:
            raise TooLarge(field="config" if self.metadata is None else "metadata")
        return VersionChange(self.graph_id, self.name, self.description, config, context, self.metadata)


class MakeAssistant(ChangeAssistant):
    """A new assistant. `if_exists` says what happens if its id exists already."""

    graph_id: _Id
    assistant_id: CleanText | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"


class SetLatest(RequestBody):
    """The version that is to become current."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


def expect_uuid(assistant_id: str) -> str:
    """The id in its normal form, for comparison. Raises `Faulty`, with the text of LangGraph's own server."""
    if not is_uuid(assistant_id):
        raise Faulty("Invalid assistant ID: must be a UUID", "assistant_id")
    return assistant_id.lower()


def contains(whole: Any, part: Any) -> bool:
    """Whether a JSON object contains another one, at each level. Lists must be equal: looking for each item of one in
    the other would take the product of their lengths."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    return type(whole) is type(part) and bool(whole == part)


def of_configuration(settings: AgentSettings, at: datetime) -> dict[str, Any]:
    """The assistant of a configured agent; it counts as created when the service started."""
    version = AgentVersion(
        1,
        settings.id,
        settings.name,
        settings.tuning.description or None,
        metadata={"created_by": "system"},
        created_at=at,
    )
    return {**version_json(settings.id, version), "updated_at": _time(at)}


def of_version(agent_id: str, version: AgentVersion, made_at: datetime, changed_at: datetime) -> dict[str, Any]:
    """The assistant of an agent that a client created, in its current version."""
    return {
        **version_json(agent_id, version),
        "created_at": _time(made_at),
        "updated_at": _time(changed_at),
    }


def version_json(agent_id: str, version: AgentVersion) -> dict[str, Any]:
    """One version as clients read it."""
    return {
        "assistant_id": assistant_id_of(agent_id),
        "graph_id": version.graph_id,
        "config": version.config,
        "context": version.context,
        "metadata": version.metadata,
        "name": version.name,
        "created_at": _time(version.created_at),
        "version": version.number,
        "description": version.description,
    }


def _values(config: dict[str, Any], context: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config and context, each completed from the other: clients send either."""
    if strange := config.keys() - _OF_CONFIG:
        raise Faulty(f"config.{min(strange)[:_MAX_NAME]} is not kept: only configurable and tags are.", "config")
    given = config.get(_CONFIGURABLE) or {}
    if not isinstance(given, dict):
        raise Faulty("config.configurable is no object.", "config.configurable")
    if given and context and given != context:
        raise Faulty("context and config.configurable say the same: only one of them may be given.", "context")
    values = given or context
    if any(len(name) > _MAX_NAME for name in values):
        raise Faulty(f"A name in context is longer than {_MAX_NAME} characters.", "context")
    return ({**config, _CONFIGURABLE: values} if values else config), values


def _time(at: datetime | None) -> str:
    return (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="microseconds")
