"""A change of who may read takes effect at the next query: no search and no read in between is of the old state."""

from typing import Any

from tests.knowledge_flow_backend.access.test_matrix import POLICIES
from tests.knowledge_flow_backend.access.world import DocumentOf, Scope, World, upload

SEES = (({"users": ["cleo"]}, "cleo"), ({"groups": ["/team"]}, "ben"), ({"everyone": True}, "machine"))


async def sees(changing_world: World, user: str, name: str) -> bool:
    """Whether a person finds a document by every policy, and opens it; by some only is a mistake."""
    answers = [name in await changing_world.found(user, search_policy=policy) for policy in POLICIES]
    narrowed = await changing_world.search(user, Scope(documents=(name,)))
    opened = await changing_world.ask(user, "GET", f"/markdown/{changing_world.documents[name]}")
    listed = await changing_world.done(user, "POST", "/documents/browse", json={"filters": {"name": f"file-{name}-"}})
    answers += [bool(narrowed.json()), opened.status == 200, listed["total"] == 1]
    assert len(set(answers)) == 1, answers
    return answers[0]


async def place(changing_world: World, name: str, *libraries: str) -> None:
    """Move a document of Ada's."""
    body = {"tag_ids": [changing_world.libraries[library] for library in libraries]}
    await changing_world.done("ada", "PUT", f"/documents/{changing_world.documents[name]}/tags", json=body)


async def test_sharing_and_its_end_hold_at_once(changing_world: World) -> None:
    access = f"/tags/{changing_world.libraries['private']}/access"
    for readers, user in SEES * 2:
        assert not await sees(changing_world, user, "private")
        await changing_world.done("ada", "PUT", access, json=readers)
        assert await sees(changing_world, user, "private")
        assert not await sees(changing_world, user, "loose")
        await changing_world.done("ada", "PUT", access, json={})
        assert not await sees(changing_world, user, "private")


async def test_a_move_holds_at_once(changing_world: World) -> None:
    for library, user in (("team", "ben"), ("forben", "ben"), ("all", "machine")):
        assert not await sees(changing_world, user, "loose")
        await place(changing_world, "loose", library)
        assert await sees(changing_world, user, "loose")
        await place(changing_world, "loose", "private", library)
        assert await sees(changing_world, user, "loose")
        await place(changing_world, "loose", "private")
        assert not await sees(changing_world, user, "loose")
    await place(changing_world, "loose")
    assert await sees(changing_world, "ada", "loose")


async def hit_of(changing_world: World, user: str, name: str) -> dict[str, Any]:
    """The one hit of a document."""
    (hit,) = (await changing_world.search(user, Scope(documents=(name,)))).json()
    return dict(hit)


async def test_a_hit_names_the_libraries_as_they_are_called_now_and_only_ones_own_to_read(
    changing_world: World,
) -> None:
    tag = changing_world.libraries["team"]
    for change, path in (
        ({"name": "renamed"}, "shelf/renamed"),
        ({"path": "upper/lower"}, "upper/lower/renamed"),
        ({"path": "", "name": "top"}, "top"),
    ):
        await changing_world.done("ada", "PUT", f"/tags/{tag}", json=change)
        hit = await hit_of(changing_world, "ben", "both")
        assert (hit["tag_ids"], hit["tag_names"], hit["tag_full_paths"]) == ([tag], [path.rpartition("/")[2]], [path])
    await place(changing_world, "both", "all", "private")
    assert (await hit_of(changing_world, "ben", "both"))["tag_names"] == ["name-of-all-"]
    assert set((await hit_of(changing_world, "ada", "both"))["tag_names"]) == {"name-of-all-", "name-of-private-"}


async def test_what_is_kept_out_of_searches_or_deleted_is_not_found_any_more(changing_world: World) -> None:
    path = f"/document/metadata/{changing_world.documents['all']}?retrievable="
    for retrievable in ("false", "true", "false", "true"):
        await changing_world.done("ada", "PUT", path + retrievable)
        for policy in POLICIES:
            assert ("all" in await changing_world.found("machine", search_policy=policy)) == (retrievable == "true")
    await changing_world.done("ada", "DELETE", f"/tags/{changing_world.libraries['all']}")
    assert not await sees(changing_world, "machine", "all")
    assert not await sees(changing_world, "ada", "all")
    await changing_world.done("ada", "DELETE", f"/documents/{changing_world.documents['forben']}")
    assert not await sees(changing_world, "ben", "forben")
    # What stands in another library stays, for those who read that one.
    await changing_world.done("ada", "DELETE", f"/tags/{changing_world.libraries['team']}")
    assert not await sees(changing_world, "ben", "both")
    assert await sees(changing_world, "ada", "both")


async def test_new_content_is_read_by_those_who_read_the_old(changing_world: World) -> None:
    await changing_world.done("ada", "PUT", f"/documents/{changing_world.documents['both']}/tags", json={"tag_ids": []})
    await place(changing_world, "both", "forben")
    answer = await upload(changing_world, "both", DocumentOf("ada", ("forben",)), more="It was changed.")
    assert b'"status":"success"' in answer.body
    assert changing_world.documents["both"].encode() in answer.body
    (hit,) = (await changing_world.search("ben", Scope(documents=("both",)), question="changed")).json()
    assert "It was changed." in hit["content"]
    assert hit["tag_names"] == ["name-of-forben-"]
    assert not await sees(changing_world, "cleo", "both")
