"""What the routes of libraries and documents are sent: shapes and bounds."""

from typing import Annotated, Literal

from fastapi import HTTPException
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from backend_kit.wire import storable
from knowledge_flow_backend.library.statements import SORTS
from knowledge_flow_backend.library.store import Access, DocumentFilter, NewTag, Window

MAX_INT = 2**31 - 1
MAX_READERS = 500
"""Users, and groups, that one library may name: each is compared in every search."""
MAX_LIBRARIES = 100
"""Libraries that one document may stand in."""


Id = Annotated[str, PathParam(min_length=1, max_length=128), AfterValidator(storable)]
Storable = Annotated[str, AfterValidator(storable)]
Who = Annotated[Storable, Field(min_length=1, max_length=255)]
Name = Annotated[Storable, Field(min_length=1, max_length=200)]
Ids = Annotated[list[Annotated[Storable, Field(max_length=128)]], Field(max_length=1000)]


class _Model(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)


class CreateTag(_Model):
    """Body of `POST /tags`."""

    name: Name
    type: Literal["document"] = "document"
    path: Annotated[Storable, Field(max_length=400)] | None = None
    description: Annotated[Storable, Field(max_length=2000)] | None = None

    def tag(self) -> NewTag:
        """The library to create."""
        return NewTag(_trimmed(self.name), _path(self.path or ""), self.type, self.description)


class ChangeTag(_Model):
    """Body of `PUT /tags/{id}`; what is left out stays as it is."""

    name: Name | None = None
    path: Annotated[Storable, Field(max_length=400)] | None = None
    description: Annotated[Storable, Field(max_length=2000)] | None = None

    def fields(self) -> dict[str, str | None]:
        """What changes; None does not."""
        return {
            "name": None if self.name is None else _trimmed(self.name),
            "path": None if self.path is None else _path(self.path),
            "description": self.description,
        }


class AccessBody(_Model):
    """Who reads a library beside its owner. A `PUT` replaces all of it; a key that is not here is refused.

    `users` are compared with `sub` of a token, `groups` with its `groups`, both letter by letter.
    """

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    everyone: Annotated[StrictBool, Field(description="Everyone who is known to the service.")] = False
    users: Annotated[list[Who], Field(max_length=MAX_READERS)] = []
    groups: Annotated[list[Who], Field(max_length=MAX_READERS)] = []

    def access(self) -> Access:
        """As the library takes it."""
        return Access(self.everyone, tuple(self.users), tuple(self.groups))

    @classmethod
    def of(cls, access: Access) -> "AccessBody":
        """As an answer shows it."""
        return cls(everyone=access.everyone, users=list(access.users), groups=list(access.groups))


class Placement(_Model):
    """Body of `PUT /documents/{uid}/tags`: the libraries that the document is to stand in, and no others."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    tag_ids: Annotated[list[Annotated[Storable, Field(max_length=128)]], Field(max_length=MAX_LIBRARIES)]


class Filters(_Model):
    """`filters` of a listing; a key that is not here is refused."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    tag_ids: Ids | None = None
    document_uids: Ids | None = None
    status: Literal["processing", "ready", "failed"] | None = None
    retrievable: StrictBool | None = None
    name: Annotated[Storable, Field(max_length=200)] | None = None

    def chosen(self) -> DocumentFilter:
        """As the library takes it."""
        return DocumentFilter(
            uids=None if self.document_uids is None else tuple(self.document_uids),
            tags=None if self.tag_ids is None else tuple(self.tag_ids),
            status=self.status,
            retrievable=self.retrievable,
            words=self.name or None,
        )


class Sort(_Model):
    """One key of a listing's order."""

    field: str
    direction: Literal["asc", "desc"] = "asc"


class Browse(_Model):
    """Body of `POST /documents/browse`. `sort_by`: one key, as `title`, `-title` or `[{field, direction}]`."""

    filters: Filters = Filters()
    offset: Annotated[int, Field(ge=0, le=MAX_INT, strict=True)] = 0
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] = 50
    sort_by: str | Annotated[list[Sort], Field(max_length=1)] | None = None

    def window(self) -> Window:
        """The requested part and order. Raises HTTPException with 422 for an unknown order."""
        if not self.sort_by:
            return Window(self.limit, self.offset)
        if isinstance(self.sort_by, str):
            chosen = Sort(field=self.sort_by.lstrip("-"), direction="desc" if self.sort_by[0] == "-" else "asc")
        else:
            chosen = self.sort_by[0]
        if chosen.field not in SORTS:
            raise HTTPException(422, f"sort_by is one of {', '.join(SORTS)}")
        return Window(self.limit, self.offset, chosen.field, chosen.direction == "desc")


def _trimmed(name: str) -> str:
    return name.strip() or name


def _path(path: str) -> str:
    return path.strip("/ ")
