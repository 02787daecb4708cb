"""Reads the JSON body of a request by a model of pydantic. A fault names its field, and quotes nothing."""

from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agentic_backend.chat.frames import storable_json
from agentic_backend.surfaces.langgraph.errors import Faulty
from backend_kit.wire import InvalidJson, field_of, loads


class RequestBody(BaseModel):
    """Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


JsonObject = Annotated[dict[str, Any], AfterValidator(storable_json)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Body = TypeVar("_Body", bound=RequestBody)


async def read_body(request: Request, model: type[_Body]) -> _Body:
    """The body of a request; an empty one is an empty object. Raises `Faulty`."""
    try:
        raw = loads(await request.body() or b"{}")
    except InvalidJson:
        raise Faulty("The body is no JSON.") from None
    if not isinstance(raw, dict):
        raise Faulty("The body is no JSON object.")
    return checked_body(raw, model)


def checked_body(raw: dict[str, Any], model: type[_Body]) -> _Body:
    """An object as the model describes it. Raises `Faulty`."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        field = field_of(error.errors(include_url=False, include_input=False))
        sentence = "The request is not as described." if field is None else f"{field} is missing or not allowed."
        raise Faulty(sentence, field) from None
