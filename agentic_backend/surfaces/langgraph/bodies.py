"""JSON bodies of requests, validated by pydantic models, and of responses. Errors name the field and quote no value."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from fastapi import Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentic_backend.chat.frames import storable_json
from agentic_backend.surfaces.langgraph.errors import Faulty
from backend_kit.wire import InvalidJson, field_of, loads

BODY: Final = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
"""`openapi_extra=` of a route with such a body."""


class RequestBody(BaseModel):
    """Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


AnyJson = Annotated[Any, AfterValidator(storable_json)]
JsonObject = Annotated[dict[str, Any], AfterValidator(storable_json)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Model = TypeVar("_Model", bound=BaseModel)


async def json_body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body; `{}` for an empty body. Raises `Faulty`."""
    try:
        said = loads(await request.body() or b"{}")
    except InvalidJson:
        raise Faulty("The body is no JSON.") from None
    if not isinstance(said, dict):
        raise Faulty("The body is no JSON object.")
    return said


async def read_body(request: Request, model: type[_Model]) -> _Model:
    """The body of a request, validated by the model. Raises `Faulty`."""
    return checked_body(await json_body(request), model)


def checked_body(said: Mapping[str, Any], model: type[_Model], at: str | None = None) -> _Model:
    """An object, validated by the model; `at` is its path in the body. Raises `Faulty`."""
    try:
        return model.model_validate(said)
    except ValidationError as error:
        field = field_of(error.errors(include_url=False, include_input=False, include_context=False))
        place = ".".join(filter(None, (at, field))) or None
        sentence = "The request is not as described." if place is None else f"{place} is missing or not allowed."
        raise Faulty(sentence, place) from None


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(body, 200, dict(headers or {}), "application/json")
