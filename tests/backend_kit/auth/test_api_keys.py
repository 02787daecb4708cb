"""Keys: their form, how long what is known of one counts, their rate, and who a caller with one is."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_kit.auth import (
    ANY,
    PUBLIC,
    ActingHeaders,
    ActingUser,
    ApiKeys,
    AuthError,
    Callers,
    Credentials,
    Grant,
    HmacVerifier,
    Identity,
    KeyRecord,
    KeyScope,
    NoAuth,
    RouteScopes,
    ScopeMissing,
    know_caller,
    make_key,
    takes_any_token,
    token_of,
)
from backend_kit.auth.acting import EMAIL_HEADER, ID_HEADER, NAME_HEADER, SIGNED_HEADER
from backend_kit.auth.api_keys import parse_key
from backend_kit.auth.grant import KeyTooFast
from backend_kit.wire import Code, ServiceError
from tests.support.api_keys import ALL, new_key
from tests.support.clock import Clock
from tests.support.people import SECRET
from tests.support.people import token_of as signed_token

FRONT_END = ALL | {KeyScope.ACT_AS}


class Away(ServiceError):
    """The database does not answer."""

    code: ClassVar[Code] = Code.HISTORY_UNAVAILABLE


class Table:
    """A `KeySource` in memory. It does not answer while `open` is clear, and fails while `away`."""

    def __init__(self) -> None:
        self.rows: dict[str, KeyRecord] = {}
        self.asked: list[list[str]] = []
        self.noted: list[dict[str, float]] = []
        self.away = False
        self.open = asyncio.Event()
        self.open.set()

    async def find(self, ids: Sequence[str]) -> list[KeyRecord]:
        self.asked.append(list(ids))
        await self.open.wait()
        if self.away:
            raise Away
        return [self.rows[id_] for id_ in ids if id_ in self.rows]

    async def note_use(self, used: Mapping[str, float]) -> None:
        if self.away:
            raise Away
        self.noted.append(dict(used))

    def add(self, owner: str = "ann", scopes: frozenset[KeyScope] = ALL, **fields: Any) -> str:
        shown, record = new_key(owner, scopes, **fields)
        self.rows[record.id] = record
        return shown

    def change(self, key: str, **fields: Any) -> None:
        id_ = key.split("_")[1]
        self.rows[id_] = replace(self.rows[id_], **fields)


class Process:
    """The keys of one process. Time passes when the test says so; `wall` is the clock of expiry."""

    def __init__(self, table: Table, clock: Clock, **options: Any) -> None:
        self.clock = clock
        self.wall = Clock(1_000_000.0)
        self.keys = ApiKeys(table, Away, clock=clock, wall=self.wall, **options)
        self.callers = Callers(HmacVerifier(SECRET), self.keys)

    async def passes(self, seconds: float) -> None:
        """Let time pass, with a round of the background work each second."""
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            self.wall.now += 1.0
            await self.keys.look()
            await asyncio.sleep(0)  # the loop lets go of what woke this task


@asynccontextmanager
async def following(process: Process) -> AsyncIterator[Process]:
    """The process with its background work, which ends with the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(process.keys.follow())
        yield process
        task.cancel()


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
async def process(table: Table, clock: Clock) -> AsyncIterator[Process]:
    async with following(Process(table, clock)) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_key_has_its_form_and_only_the_hash_of_its_secret_is_kept() -> None:
    shown, parsed = make_key()
    mark, id_, secret = shown.split("_")
    assert (mark, len(id_), len(secret)) == ("tw", 12, 43)
    assert parsed.digest == hashlib.sha256(secret.encode()).digest()
    assert parse_key(shown) == parsed
    assert secret not in repr(parsed) + repr(new_key()[1])
    assert make_key()[0] != shown


@given(st.text() | st.from_regex(r"tw_[a-z0-9]{11,13}_\w{42,44}", fullmatch=True))
def test_nothing_else_is_a_key(text: str) -> None:
    parsed = parse_key(text)
    assert parsed is None or (text.isascii() and text.isprintable() and len(text) == len(make_key()[0]))


async def test_a_key_is_its_owner_with_what_was_left_to_it(process: Process, table: Table) -> None:
    key = table.add(
        "ann", frozenset({KeyScope.ASK}), groups=("/staff",), roles=frozenset({"admin"}), agents=frozenset("a")
    )
    identity = await process.callers.verify(key)
    assert (identity.uid, identity.groups, identity.roles) == ("ann", ("/staff",), frozenset())
    assert (identity.may(KeyScope.ASK), identity.may(KeyScope.READ)) == (True, False)
    assert (identity.may_ask("a"), identity.may_ask("b")) == (True, False)
    admin = await process.callers.verify(table.add(roles=frozenset({"admin"})))
    assert admin.roles == {"admin"}


async def test_whoever_has_a_token_is_who_they_were(process: Process) -> None:
    identity = await process.callers.verify(signed_token("bob"))
    assert (identity.uid, identity.grant) == ("bob", None)
    assert identity.may(KeyScope.ADMIN)
    assert identity.may_ask("x")
    with pytest.raises(AuthError, match="No authentication token provided"):
        await process.callers.verify(None)


@pytest.mark.parametrize("wrong", ["another secret", "another id", "cut", "tw_", "tw__", "no keys"])
async def test_what_is_no_valid_key_is_refused_with_the_same_words(process: Process, table: Table, wrong: str) -> None:
    key = table.add()
    mark, id_, secret = key.split("_")
    shown = {
        "another secret": f"{mark}_{id_}_{secret[::-1]}",
        "another id": f"{mark}_{id_[::-1]}_{secret}",
        "cut": key[:-1],
        "no keys": key,
    }.get(wrong, wrong)
    callers = Callers(NoAuth()) if wrong == "no keys" else process.callers
    with pytest.raises(AuthError) as refused:
        await callers.verify(shown)
    assert refused.value.detail == "Invalid token"
    assert secret not in repr(refused.value)


async def test_without_authentication_a_key_is_still_a_key(table: Table, clock: Clock) -> None:
    process = Process(table, clock)
    callers = Callers(NoAuth(), process.keys)
    assert takes_any_token(callers)
    assert (await callers.verify("anything")).uid == "admin"
    async with following(process):
        limited = await callers.verify(table.add("admin", frozenset({KeyScope.READ})))
        assert (limited.uid, limited.may(KeyScope.ASK)) == ("admin", False)
        with pytest.raises(AuthError):
            await callers.verify(make_key()[0])


async def test_a_revoked_key_ends_within_five_seconds_in_a_process_that_nobody_told(
    process: Process, table: Table
) -> None:
    key = table.add()
    identity = await process.callers.verify(key)
    table.change(key, revoked_at=1.0)
    assert (await process.callers.verify(key)).uid == "ann", "this process cannot know yet"
    process.clock.now += 4.0  # without a round of the background: the next request looks itself
    with pytest.raises(AuthError, match="Invalid token"):
        await process.callers.verify(key)
    assert identity.ended()
    assert identity.grant is not None
    with pytest.raises(AuthError):
        await identity.grant.confirm()


async def test_a_socket_that_says_nothing_learns_of_it_too(process: Process, table: Table) -> None:
    key = table.add()
    identity = await process.callers.verify(key)
    await process.passes(300)
    table.change(key, revoked_at=1.0)
    assert not identity.ended()
    await process.keys.look()
    assert identity.ended()


async def test_a_row_that_somebody_deletes_by_hand_ends_the_key(process: Process, table: Table) -> None:
    key = table.add()
    identity = await process.callers.verify(key)
    table.rows.clear()
    await process.keys.look()
    assert identity.ended()
    with pytest.raises(AuthError):
        await process.callers.verify(key)


async def test_a_key_expires_by_the_wall_clock(process: Process, table: Table) -> None:
    key = table.add(expires_at=process.wall.now + 10)
    identity = await process.callers.verify(key)
    process.wall.now += 10
    assert identity.grant is not None
    assert identity.grant.ended()
    with pytest.raises(AuthError, match="Token has expired"):
        await process.callers.verify(key)


async def test_while_the_database_is_away_a_key_counts_for_as_long_as_it_is_trusted(
    process: Process, table: Table
) -> None:
    key = table.add()
    identity = await process.callers.verify(key)
    table.away = True
    assert (await process.callers.verify(key)).uid == "ann"
    process.clock.now += 4.0
    with pytest.raises(Away):
        await process.callers.verify(key)
    assert identity.grant is not None
    with pytest.raises(Away):
        await identity.grant.confirm()
    assert not identity.ended(), "an open socket is not closed for an outage"
    table.away = False
    assert (await process.callers.verify(key)).uid == "ann"


async def test_look_ups_that_come_together_are_one_statement(process: Process, table: Table) -> None:
    keys = [table.add(f"user{n}") for n in range(20)]
    table.open.clear()
    first = asyncio.create_task(process.callers.verify(keys[0]))
    while not table.asked:  # noqa: ASYNC110 - the double tells nobody
        await asyncio.sleep(0)
    rest = [
        asyncio.create_task(process.callers.verify(key)) for key in (*keys[1:], *(make_key()[0] for _ in range(20)))
    ]
    await asyncio.sleep(0)
    table.open.set()
    found = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [one.uid if isinstance(one, Identity) else "" for one in found] == [f"user{n}" for n in range(20)] + [
        ""
    ] * 20
    assert len(table.asked) == 2


async def test_a_key_in_use_costs_one_look_up_in_a_while(process: Process, table: Table) -> None:
    key = table.add()
    for _ in range(100):
        await process.callers.verify(key)
    assert len(table.asked) == 1


async def test_nothing_is_asked_while_no_key_is_in_use(process: Process, table: Table) -> None:
    key = table.add()
    await process.callers.verify(key)
    await process.passes(130)
    asked = len(table.asked)
    await process.passes(10)
    assert len(table.asked) == asked


async def test_when_a_key_was_used_is_written_at_most_once_a_minute(process: Process, table: Table) -> None:
    key = table.add()
    for _ in range(150):
        await process.callers.verify(key)
        await process.passes(1)
    assert [set(noted) for noted in table.noted] == [{key.split("_")[1]}] * 2
    assert list(table.noted[0].values()) == [1_000_059.0]


async def test_a_rate_is_a_bucket_that_a_minute_fills(process: Process, table: Table) -> None:
    identity = await process.callers.verify(table.add(rate_per_min=3))
    assert identity.grant is not None
    for _ in range(3):
        identity.grant.spend()
    with pytest.raises(KeyTooFast) as refused:
        await identity.grant.confirm()
    assert refused.value.code is Code.RATE_LIMITED
    assert refused.value.retry_after_s == pytest.approx(20.0)
    process.clock.now += 20.0
    identity.grant.spend()
    with pytest.raises(KeyTooFast):
        identity.grant.spend()


def named(**headers: str) -> list[tuple[bytes, bytes]]:
    names = {"id": ID_HEADER, "email": EMAIL_HEADER, "name": NAME_HEADER, "signed": SIGNED_HEADER}
    return [(names[name].encode(), value.encode()) for name, value in headers.items()]


async def test_a_front_end_names_its_user_who_is_nobody_else(process: Process, table: Table) -> None:
    key = table.add("ann", FRONT_END, groups=("/front",), roles=frozenset({"admin"}))
    identity, _ = await process.callers.know(key, named(id="ann", email="ann@x.org", name="Ann%20%C3%89"))
    assert (identity.uid, identity.username, identity.email) == ("via:openwebui:ann", "Ann É", "ann@x.org")
    assert (identity.groups, identity.roles) == (("/front",), frozenset())
    assert not identity.may(KeyScope.ADMIN)
    other, _ = await process.callers.know(table.add("ann", FRONT_END, namespace="two"), named(id="ann"))
    assert other.uid == "via:two:ann"
    assert (await process.callers.know(key, ()))[0].uid == "ann", "who names nobody is the owner"


async def test_nobody_signs_in_as_a_named_user(process: Process) -> None:
    with pytest.raises(AuthError):
        await process.callers.verify(signed_token("via:openwebui:ann"))


@pytest.mark.parametrize("header", [{"id": "bob"}, {"email": "bob@x.org"}, {"name": "Bob"}, {"signed": "x.y.z"}])
async def test_any_other_key_that_names_a_user_is_refused(
    process: Process, table: Table, header: dict[str, str]
) -> None:
    with pytest.raises(ScopeMissing) as refused:
        await process.callers.know(table.add(), named(**header))
    assert (refused.value.code, refused.value.field) == (Code.FORBIDDEN, "scope:act_as")


async def test_beside_a_token_such_headers_mean_nothing(process: Process) -> None:
    identity, credentials = await process.callers.know(signed_token("bob"), named(id="ann"))
    assert identity.uid == "bob"
    assert credentials is not None
    assert set(credentials.headers()) == {"Authorization"}


async def test_users_of_the_provider_are_named_where_the_deployment_and_the_key_say_so(
    table: Table, clock: Clock
) -> None:
    key = table.add("front", FRONT_END, namespace="")
    for allowed in (False, True):
        async with following(Process(table, clock, provider_users=allowed)) as process:
            if allowed:
                assert (await process.callers.know(key, named(id="bob")))[0].uid == "bob"
                continue
            with pytest.raises(ScopeMissing):
                await process.callers.know(key, named(id="bob"))


async def test_the_named_user_is_passed_on_to_the_other_service(table: Table, clock: Clock) -> None:
    for secret in (None, SECRET):
        acting = ActingHeaders(secret)
        async with following(Process(table, clock, acting=acting)) as process:
            key = table.add("ann", FRONT_END)
            user = (
                {"id": "bob"}
                if secret is None
                else {"signed": ActingHeaders(SECRET).write(ActingUser("bob"))[SIGNED_HEADER]}
            )
            identity, credentials = await process.callers.know(key, named(**user))
            assert credentials is not None
            sent = [(name.lower().encode(), value.encode()) for name, value in credentials.headers().items()]
            again, _ = await know_caller(process.callers, token_of(sent), sent)
            assert again == identity
            assert again.uid == "via:openwebui:bob"


def test_a_key_comes_in_either_header_and_the_first_wins() -> None:
    assert token_of([(b"x-api-key", b"tw_a")]) == "tw_a"
    assert token_of([(b"x-api-key", b"tw_a"), (b"authorization", b"Bearer t")]) == "t"
    assert token_of([(b"x-api-key", b" "), (b"authorization", b"Basic x")]) is None


def test_a_route_takes_the_keys_of_its_row_and_one_without_a_row_takes_none() -> None:
    rows = RouteScopes({"GET /a": frozenset({KeyScope.READ, KeyScope.ASK}), "GET /b": ANY, "GET //c": PUBLIC}, "/base")
    reader = Grant(frozenset({KeyScope.READ}))
    rows.check(reader, "GET", "/base/a")
    rows.check(reader, "GET", "/base/b")
    rows.check(reader, "GET", "/c")
    for method, template in (("POST", "/base/a"), ("GET", "/a"), ("GET", "/base/unknown"), ("GET", "unmatched")):
        with pytest.raises(ScopeMissing):
            rows.check(Grant(frozenset(KeyScope)), method, template)
    with pytest.raises(ScopeMissing) as refused:
        rows.check(Grant(frozenset({KeyScope.SEARCH})), "GET", "/base/a")
    assert refused.value.field == "scope:ask"


def test_credentials_that_are_renewed_bring_what_the_newer_ones_allow() -> None:
    credentials = Credentials("tw_x", Grant(), lambda: {"X-User": "bob"})
    assert credentials.headers() == {"Authorization": "Bearer tw_x", "X-User": "bob"}
    credentials.renew(Credentials("t"))
    assert (credentials.headers(), credentials.grant) == ({"Authorization": "Bearer t"}, None)
