"""REST route by which a page shows an image of one of the caller's conversations, a part at a time."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from fastapi import APIRouter, Response

from agentic_backend.errors import AttachmentNotFound
from agentic_backend.knowledge import IMAGE_TYPES
from agentic_backend.rest.answers import AnswerPart, Answers, PagedAnswer, Parts
from agentic_backend.rest.attachments import PATH, AttachmentId, AttachmentServices, OfSession
from agentic_backend.session.attachments import Attachment, AttachmentStore

_PART_BYTES: Final = 256 * 1024
_HEADERS: Final = {
    # Its bytes never change. Only requests with the owner's token may see it, so no shared cache may keep it.
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Disposition": "inline",
    # Opened directly, it is a document of our origin, whatever its bytes are.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}


class ImageServices(Protocol):
    """What the route needs."""

    @property
    def attachments(self) -> AttachmentServices:
        """Where the images are."""

    @property
    def answers(self) -> Answers:
        """What bounds it."""


def add_images(router: APIRouter, services: Callable[[], ImageServices], caller: Any) -> None:
    """Add the route. `services()` is called at each request: its result exists once the app runs."""
    file = {"description": "An image", "content": {mime: {} for mime in sorted(IMAGE_TYPES)}}

    @router.get(PATH + "/{attachment_id}/image", response_class=Response, responses={200: file})
    async def attached_image(attachment_id: AttachmentId, identity: caller, session_id: OfSession = None) -> Response:
        """An attached image, without metadata and at most 2,048 pixels a side."""
        state = services()
        found = await state.attachments.store.find(attachment_id, identity.uid, session_id)
        if found is None or found.mime not in IMAGE_TYPES:
            raise AttachmentNotFound
        parts = _parts(state.attachments.store, found)
        answer = PagedAnswer(state.answers, identity.uid, parts, media_type=found.mime, headers=_HEADERS)
        answer.headers["Content-Length"] = str(found.size_bytes)
        return answer


async def _parts(store: AttachmentStore, image: Attachment) -> Parts:
    """Raises `AttachmentNotFound` where it was deleted meanwhile."""
    for start in range(0, image.size_bytes, _PART_BYTES):
        part = await store.image_part(image, start, _PART_BYTES)
        if not part:
            raise AttachmentNotFound
        yield AnswerPart(part, last=start + len(part) >= image.size_bytes)
