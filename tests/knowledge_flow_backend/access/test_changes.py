"""A change of who may read takes effect at the next query: no search and no read in between is of the old state."""

from typing import Any

from tests.knowledge_flow_backend.access.filled import DocumentOf, FilledService, Scope, upload
from tests.knowledge_flow_backend.access.test_matrix import POLICIES

SEES = (({"users": ["cleo"]}, "cleo"), ({"groups": ["/team"]}, "ben"), ({"everyone": True}, "machine"))


async def sees(changeable_service: FilledService, user: str, name: str) -> bool:
    """Whether a person finds a document by every policy, and opens it; by some only is a mistake."""
    answers = [name in await changeable_service.found(user, search_policy=policy) for policy in POLICIES]
    narrowed = await changeable_service.search(user, Scope(documents=(name,)))
    opened = await changeable_service.ask(user, "GET", f"/markdown/{changeable_service.documents[name]}")
    listed = await changeable_service.done(
        user, "POST", "/documents/browse", json={"filters": {"name": f"file-{name}-"}}
    )
    answers += [bool(narrowed.json()), opened.status == 200, listed["total"] == 1]
    assert len(set(answers)) == 1, answers
    return answers[0]


async def place(changeable_service: FilledService, name: str, *libraries: str) -> None:
    """Move a document of Ada's."""
    body = {"tag_ids": [changeable_service.libraries[library] for library in libraries]}
    await changeable_service.done("ada", "PUT", f"/documents/{changeable_service.documents[name]}/tags", json=body)


async def test_sharing_and_its_end_hold_at_once(changeable_service: FilledService) -> None:
    access = f"/tags/{changeable_service.libraries['private']}/access"
    for readers, user in SEES * 2:
        assert not await sees(changeable_service, user, "private")
        await changeable_service.done("ada", "PUT", access, json=readers)
        assert await sees(changeable_service, user, "private")
        assert not await sees(changeable_service, user, "loose")
        await changeable_service.done("ada", "PUT", access, json={})
        assert not await sees(changeable_service, user, "private")


async def test_a_move_holds_at_once(changeable_service: FilledService) -> None:
    for library, user in (("team", "ben"), ("forben", "ben"), ("all", "machine")):
        assert not await sees(changeable_service, user, "loose")
        await place(changeable_service, "loose", library)
        assert await sees(changeable_service, user, "loose")
        await place(changeable_service, "loose", "private", library)
        assert await sees(changeable_service, user, "loose")
        await place(changeable_service, "loose", "private")
        assert not await sees(changeable_service, user, "loose")
    await place(changeable_service, "loose")
    assert await sees(changeable_service, "ada", "loose")


async def hit_of(changeable_service: FilledService, user: str, name: str) -> dict[str, Any]:
    """The one hit of a document."""
    (hit,) = (await changeable_service.search(user, Scope(documents=(name,)))).json()
    return dict(hit)


async def test_a_hit_names_the_libraries_as_they_are_called_now_and_only_ones_own_to_read(
    changeable_service: FilledService,
) -> None:
    tag = changeable_service.libraries["team"]
    for change, path in (
        ({"name": "renamed"}, "shelf/renamed"),
        ({"path": "upper/lower"}, "upper/lower/renamed"),
        ({"path": "", "name": "top"}, "top"),
    ):
        await changeable_service.done("ada", "PUT", f"/tags/{tag}", json=change)
        hit = await hit_of(changeable_service, "ben", "both")
        assert (hit["tag_ids"], hit["tag_names"], hit["tag_full_paths"]) == ([tag], [path.rpartition("/")[2]], [path])
    await place(changeable_service, "both", "all", "private")
    assert (await hit_of(changeable_service, "ben", "both"))["tag_names"] == ["name-of-all-"]
    assert set((await hit_of(changeable_service, "ada", "both"))["tag_names"]) == {"name-of-all-", "name-of-private-"}


async def test_what_is_kept_out_of_searches_or_deleted_is_not_found_any_more(changeable_service: FilledService) -> None:
    path = f"/document/metadata/{changeable_service.documents['all']}?retrievable="
    for retrievable in ("false", "true", "false", "true"):
        await changeable_service.done("ada", "PUT", path + retrievable)
        for policy in POLICIES:
            assert ("all" in await changeable_service.found("machine", search_policy=policy)) == (retrievable == "true")
    await changeable_service.done("ada", "DELETE", f"/tags/{changeable_service.libraries['all']}")
    assert not await sees(changeable_service, "machine", "all")
    assert not await sees(changeable_service, "ada", "all")
    await changeable_service.done("ada", "DELETE", f"/documents/{changeable_service.documents['forben']}")
    assert not await sees(changeable_service, "ben", "forben")
    # What stands in another library stays, for those who read that one.
    await changeable_service.done("ada", "DELETE", f"/tags/{changeable_service.libraries['team']}")
    assert not await sees(changeable_service, "ben", "both")
    assert await sees(changeable_service, "ada", "both")


async def test_new_content_is_read_by_those_who_read_the_old(changeable_service: FilledService) -> None:
    await changeable_service.done(
        "ada", "PUT", f"/documents/{changeable_service.documents['both']}/tags", json={"tag_ids": []}
    )
    await place(changeable_service, "both", "forben")
    answer = await upload(changeable_service, "both", DocumentOf("ada", ("forben",)), more="It was changed.")
    assert b'"status":"success"' in answer.body
    assert changeable_service.documents["both"].encode() in answer.body
    (hit,) = (await changeable_service.search("ben", Scope(documents=("both",)), question="changed")).json()
    assert "It was changed." in hit["content"]
    assert hit["tag_names"] == ["name-of-forben-"]
    assert not await sees(changeable_service, "cleo", "both")
