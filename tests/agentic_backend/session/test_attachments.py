"""What deleted attachments leave in knowledge flow is deleted there, sooner or later, each with its owner's token."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agentic_backend.errors import HistoryUnavailable, KfUnavailable, Unauthenticated
from agentic_backend.knowledge import Caller
from agentic_backend.session.attachments import Attachment, AttachmentStore, Leftover, Leftovers, Verdict
from agentic_backend.session.images import Image
from backend_kit.auth import AuditEvent, Credentials
from backend_kit.kpi import Kpi
from backend_kit.wire import ServiceError
from tests.support.patience import PATIENCE_S


@dataclass
class MemoryAttachments(AttachmentStore):
    """The list of leftovers in memory; `asked` counts the looks."""

    left: list[Leftover] = field(default_factory=list)
    away: bool = False
    asked: int = 0
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    async def leftovers(self, user_ids: list[str]) -> list[Leftover]:
        self.asked += 1
        self.looked.set()
        if self.away:
            raise HistoryUnavailable
        return [one for one in self.left if one.user_id in user_ids]

    async def forget_leftovers(self, document_uids: list[str]) -> None:
        self.left = [one for one in self.left if one.document_uid not in document_uids]

    async def verdict(self, user_id: str, session_id: str, name: str, most: int) -> Verdict:
        raise NotImplementedError

    async def keep(self, attachment: Attachment, most: int, image: Image | None = None) -> Verdict:
        raise NotImplementedError

    async def image_part(self, image: Attachment, start: int, size: int) -> bytes:
        raise NotImplementedError

    async def images(self, user_id: str, session_id: str | None, attachment_ids: Sequence[str]) -> dict[str, Image]:
        raise NotImplementedError

    async def find(self, attachment_id: str, user_id: str, session_id: str | None) -> Attachment | None:
        raise NotImplementedError

    async def delete(self, attachment_id: str, user_id: str, session_id: str | None, event: AuditEvent) -> bool:
        raise NotImplementedError

    async def leave(self, attachment: Attachment) -> None:
        raise NotImplementedError


@dataclass
class Knowledge:
    """What was deleted, by whose token; `failures` by token."""

    deleted: list[tuple[str, str]] = field(default_factory=list)
    failures: dict[str, ServiceError] = field(default_factory=dict)

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        self._note(f"{session_id}/{document_uid}", caller)

    async def delete_session(self, session_id: str, caller: Caller) -> None:
        self._note(session_id, caller)

    def _note(self, what: str, caller: Caller) -> None:
        token = caller.credentials.reveal() if caller.credentials is not None else ""
        if token in self.failures:
            raise self.failures[token]
        self.deleted.append((what, token))


def leftover(uid: str, user: str = "ann", session: str = "s1", *, whole: bool = False) -> Leftover:
    return Leftover(uid, user, session, whole)


@pytest.fixture
def attachments() -> MemoryAttachments:
    return MemoryAttachments()


@pytest.fixture
def knowledge() -> Knowledge:
    return Knowledge()


@pytest.fixture
def leftovers(attachments: MemoryAttachments, knowledge: Knowledge, kpi: Kpi) -> Leftovers:
    return Leftovers(attachments, knowledge, kpi)


async def test_only_of_users_that_were_seen_and_a_session_at_once(
    leftovers: Leftovers, attachments: MemoryAttachments, knowledge: Knowledge, kpi: Kpi
) -> None:
    attachments.left = [
        leftover("d1"),
        leftover("d2", session="s2", whole=True),
        leftover("d3", session="s2", whole=True),
        leftover("d4", "bob"),
    ]
    await leftovers.look()
    assert attachments.asked == 0
    leftovers.note_owner("ann", Credentials("of ann"))
    await leftovers.look()
    assert knowledge.deleted == [("s1/d1", "of ann"), ("s2", "of ann")]
    assert attachments.left == [leftover("d4", "bob")]
    # Nothing is left of hers: she is not looked after until she is seen again.
    await leftovers.look()
    assert attachments.asked == 1
    listed = kpi.timers["app.phase_latency_ms|phase=attachments_list_on_delete"].rollup.take()
    assert listed is not None
    assert listed.count == 1


async def test_one_users_failure_is_tried_again_and_keeps_nobody_else(
    leftovers: Leftovers, attachments: MemoryAttachments, knowledge: Knowledge
) -> None:
    attachments.left = [leftover("d1"), leftover("d2", "bob")]
    knowledge.failures["of ann"] = KfUnavailable("away")
    for user in ("ann", "bob"):
        leftovers.note_owner(user, Credentials(f"of {user}"))
    await leftovers.look()
    assert knowledge.deleted == [("s1/d2", "of bob")]
    knowledge.failures.clear()
    await leftovers.look()
    assert knowledge.deleted[1:] == [("s1/d1", "of ann")]
    assert attachments.left == []


async def test_a_token_that_has_run_out_is_not_tried_again_but_a_new_one_is(
    leftovers: Leftovers, attachments: MemoryAttachments, knowledge: Knowledge
) -> None:
    attachments.left = [leftover("d1")]
    knowledge.failures["old"] = Unauthenticated()
    leftovers.note_owner("ann", Credentials("old"))
    await leftovers.look()
    await leftovers.look()
    assert (attachments.asked, attachments.left) == (1, [leftover("d1")])
    leftovers.note_owner("ann", Credentials("new"))
    await leftovers.look()
    assert knowledge.deleted == [("s1/d1", "new")]


async def test_without_postgres_it_is_looked_at_again(
    leftovers: Leftovers, attachments: MemoryAttachments, knowledge: Knowledge
) -> None:
    attachments.left, attachments.away = [leftover("d1")], True
    leftovers.note_owner("ann", None)
    await leftovers.look()
    attachments.away = False
    await leftovers.look()
    assert knowledge.deleted == [("s1/d1", "")]


async def test_a_deletion_is_followed_at_once(
    leftovers: Leftovers, attachments: MemoryAttachments, knowledge: Knowledge
) -> None:
    attachments.left = [leftover("d1")]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(leftovers.delete_leftovers())
        leftovers.note_owner("ann", None, at_once=True)
        await attachments.looked.wait()
        running.cancel()
    assert attachments.asked == 1
