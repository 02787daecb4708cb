"""Images attached to sessions, and those that a turn shows to its model: of its question, and as many of the newest
earlier ones as fit."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentic_backend.errors import AttachmentNotFound, AttachmentTooLarge
from agentic_backend.events import Part, image_part
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.stream import MOST_IMAGES, Ask

MOST_BYTES = 10 * 1024 * 1024
"""Bytes of all images that a model is shown at once: the maximum size of one."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a session as a model and a browser get it: without metadata, at most 2,048 pixels a side.

    `width` and `height` in pixels; `mime` is `image/png`, `image/jpeg` or `image/webp`.
    """

    attachment_id: str
    name: str
    mime: str
    width: int
    height: int
    content: bytes = field(repr=False)


class ImageStore(Protocol):
    """The images among the attachments of users' own sessions."""

    async def images(self, user_id: str, session_id: str | None, attachment_ids: Sequence[str]) -> dict[str, Image]:
        """Those of the ids that are images of that session of the user (None: of any), by id; the others are left out.
        May raise `HistoryUnavailable`."""


@dataclass(frozen=True, slots=True)
class ShownImages:
    """The images of a question: as parts of its message, and as the data URLs that its agent gets. `history` has those
    of earlier questions."""

    history: Sequence[HistoryItem]
    parts: Sequence[Part] = ()
    data_urls: Sequence[str] = field(default=(), repr=False)


def names_images(ask: Ask, history: Iterable[HistoryItem]) -> bool:
    """Whether the question or one before it shows any."""
    return bool(ask.images) or any(item.images for item in history)


async def shown_images(
    store: ImageStore, ask: Ask, history: Sequence[HistoryItem], *, whole: bool = True
) -> ShownImages:
    """What the turn shows, read from storage.

    With `whole` all images of its question are shown: raises AttachmentNotFound for one that is not of the session,
    AttachmentTooLarge for more than `MOST_BYTES`. A regenerated answer, and a run that continues or is restarted, leave
    out images that no longer exist, as for earlier questions. May raise HistoryUnavailable.
    """
    asked = await store.images(ask.user_id, ask.session_id, ask.images) if ask.images else {}
    if whole and len(asked) < len(ask.images):
        raise AttachmentNotFound(field="images")
    urls: dict[str, str] = {}
    left = MOST_BYTES
    for image in asked.values():
        left -= len(image.content)
        if left >= 0:
            urls[image.attachment_id] = _data_url(image)
        elif whole:
            raise AttachmentTooLarge(field="images")
    # One by one, newest first: what does not fit is not read, except the first one.
    for earlier in _earlier(history, asked, MOST_IMAGES - len(ask.images)):
        for image in (await store.images(ask.user_id, ask.session_id, [earlier])).values():
            left -= len(image.content)
            if left >= 0:
                urls[earlier] = _data_url(image)
        if left <= 0:
            break
    named = [asked[one] for one in ask.images if one in asked]
    return ShownImages(
        [item.showing(urls) for item in history],
        [image_part(one.attachment_id, one.name) for one in named],
        [urls[one.attachment_id] for one in named if one.attachment_id in urls],
    )


def _earlier(history: Sequence[HistoryItem], asked: Mapping[str, Image], most: int) -> Sequence[str]:
    """The images of earlier questions, the newest first."""
    found = dict.fromkeys(one for item in reversed(history) for one in reversed(item.images) if one not in asked)
    return list(found)[: max(most, 0)]


def _data_url(image: Image) -> str:
    return f"data:{image.mime};base64,{base64.b64encode(image.content).decode()}"
