"""What knowledge flow notes: who shares, moves and deletes, and who reads what others share."""

from typing import Any

import psycopg

from tests.agentic_backend.records import until
from tests.knowledge_flow_backend.access.filled import FilledService, Scope
from tests.support.postgres import Database


def told(filled: FilledService, database: Database, *actions: str) -> list[tuple[Any, ...]]:
    """Action, kind, object, subject and actor of the events with these actions, in their order."""
    index = filled.service.service._settings.storage.vector_store.index
    query = f"""SELECT action, kind, object_id, subject, actor FROM "{index}".audit_event
        WHERE action = ANY(%s) ORDER BY happened_at, subject"""  # noqa: S608 - ours
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(query.encode(), (list(actions),)).fetchall()


async def test_each_reader_who_comes_or_goes_is_an_event(changeable_service: FilledService, database: Database) -> None:
    library = changeable_service.libraries["private"]
    for access in (
        {"users": ["ben", "cleo"], "groups": ["/team"]},
        {"users": ["ben", "cleo"], "groups": ["/team"]},
        {"users": ["cleo"], "everyone": True},
    ):
        await changeable_service.done("ada", "PUT", f"/tags/{library}/access", json=access)
    refused = await changeable_service.ask("ben", "PUT", f"/tags/{library}/access", json={"users": ["ben"]})
    assert refused.status == 403
    events = told(changeable_service, database, "library_shared", "library_unshared")
    assert [event for event in events if event[2] == library] == [
        ("library_shared", "library", library, "group:/team", "ada"),
        ("library_shared", "library", library, "user:ben", "ada"),
        ("library_shared", "library", library, "user:cleo", "ada"),
        ("library_shared", "library", library, "everyone", "ada"),
        ("library_unshared", "library", library, "group:/team", "ada"),
        ("library_unshared", "library", library, "user:ben", "ada"),
    ]


async def test_what_is_moved_and_deleted_is_an_event_each(
    changeable_service: FilledService, database: Database
) -> None:
    libraries, documents = changeable_service.libraries, changeable_service.documents
    path = f"/documents/{documents['loose']}/tags"
    await changeable_service.done("ada", "PUT", path, json={"tag_ids": [libraries["team"]]})
    await changeable_service.done("ada", "DELETE", f"/documents/{documents['forben']}")
    await changeable_service.done("ada", "DELETE", f"/tags/{libraries['team']}")
    await changeable_service.done("ada", "DELETE", f"/fast/ingest/{documents['adasfile']}")
    await changeable_service.done("ben", "DELETE", "/fast/ingest?session_id=s-ben")
    for path in (f"/documents/{documents['both']}", f"/tags/{libraries['private']}"):
        assert (await changeable_service.ask("ben", "DELETE", path)).status in (403, 404)
    actions = ("document_placed", "document_deleted", "library_deleted", "attachment_deleted")
    events = told(changeable_service, database, *actions)
    # The library took its two documents that stood in no other.
    assert sorted(events[2:4]) == sorted(
        ("document_deleted", "document", documents[name], "", "ada") for name in ("team", "loose")
    )
    del events[2:4]
    assert events == [
        ("document_placed", "document", documents["loose"], "", "ada"),
        ("document_deleted", "document", documents["forben"], "", "ada"),
        ("library_deleted", "library", libraries["team"], "", "ada"),
        ("attachment_deleted", "attachment", documents["adasfile"], "", "ada"),
        ("attachment_deleted", "session", "s-ben", "", "ben"),
    ]


async def test_reading_what_another_shares_is_an_event_once_and_ones_own_is_none(
    changeable_service: FilledService, database: Database
) -> None:
    libraries, documents = changeable_service.libraries, changeable_service.documents
    for _ in range(2):
        for user in ("ada", "ben", "cleo"):
            await changeable_service.search(user, Scope(documents=("team", "bens", "adasfile")))
        for route in ("/markdown/{}", "/raw_content/{}", "/documents/{}/chunks"):
            for user, name in (("ben", "forben"), ("ada", "private")):
                assert (await changeable_service.ask(user, "GET", route.format(documents[name]))).status == 200
    refused = await changeable_service.ask("ben", "GET", f"/markdown/{documents['private']}")
    assert refused.status == 404
    await until(lambda: len(told(changeable_service, database, "read_by_share")) == 2)
    # What is noted later is written later: by then nothing else can come.
    await changeable_service.ask("cleo", "GET", f"/markdown/{documents['all']}")
    await until(lambda: len(told(changeable_service, database, "read_by_share")) == 3)
    assert sorted(told(changeable_service, database, "read_by_share")) == sorted(
        [
            ("read_by_share", "library", libraries["team"], "", "ben"),
            ("read_by_share", "document", documents["forben"], "", "ben"),
            ("read_by_share", "document", documents["all"], "", "cleo"),
        ]
    )
