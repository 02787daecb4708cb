from agentic_backend.session.models import Session
from agentic_backend.spool.cache import HistoryCache, RememberedExchange
from tests.agentic_backend.records import turn, turns

KEY = ("s", "u")


def exchange(number: int, size: int = 10) -> RememberedExchange:
    return RememberedExchange.of_texts(f"x{number}", "q" * size, "a" * size)


def session() -> Session:
    return Session("s", "u", "georges", "", "")


def test_a_new_session_is_known_from_its_first_turn_on() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    cache.begin(KEY)
    assert cache.get(KEY, 20) == []
    for record in turns(session(), 3):
        cache.append(KEY, record)
    assert [e.exchange_id for e in cache.get(KEY, 20) or []] == ["x1", "x2", "x3"]
    assert [e.exchange_id for e in cache.get(KEY, 2) or []] == ["x2", "x3"]
    assert (cache.hits, cache.misses) == (3, 0)


def test_more_than_what_is_kept_is_a_miss() -> None:
    cache = HistoryCache(1_000_000, depth=2)
    cache.begin(KEY)
    for record in turns(session(), 3):
        cache.append(KEY, record)
    assert [e.exchange_id for e in cache.get(KEY, 2) or []] == ["x2", "x3"]
    assert cache.get(KEY, 3) is None
    assert cache.get(("s", "another user"), 1) is None
    assert (cache.hits, cache.misses) == (1, 2)


def test_a_turn_that_ends_while_the_history_is_read_is_not_missed() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    first, second, third = turns(session(), 3)
    other = Session("other", "u", "georges", "", "")
    loading = cache.load(KEY, 3, [first])
    cache.append(KEY, second)
    cache.append(("other", "u"), turn(other, "elsewhere"))
    found = cache.loaded(loading, [exchange(0), exchange(1)])
    cache.end(loading)
    cache.append(KEY, third)

    assert [e.exchange_id for e in found] == ["x0", "x1", "x2"]
    assert [e.exchange_id for e in cache.get(KEY, 3) or []] == ["x1", "x2", "x3"]


def test_a_session_deleted_while_it_is_read_is_not_kept() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    mine, other = cache.load(KEY, 3, []), cache.load(("other", "u"), 3, [])
    cache.forget(KEY)
    cache.loaded(mine, [exchange(1)])
    cache.loaded(other, [exchange(2)])
    assert cache.get(KEY, 1) is None
    assert cache.get(("other", "u"), 1) == [exchange(2)]


def test_failed_interrupted_and_unanswered_turns_are_not_remembered() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    cache.begin(KEY)
    cache.append(KEY, turn(session(), "failed", "q", "sorry", metadata={"extras": {"error": "llm_timeout"}}))
    cache.append(KEY, turn(session(), "stopped at once", "q", ""))
    cache.append(KEY, turn(session(), "stopped", "q", "half an", metadata={"extras": {"status": "interrupted"}}))
    cache.append(KEY, turn(session(), "answered", "q", "a"))
    assert [e.exchange_id for e in cache.get(KEY, 3) or []] == ["answered"]


def test_an_answer_without_words_is_remembered_for_the_state_that_it_left() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    cache.begin(KEY)
    cache.append(KEY, turn(session(), "silent", "q", "", metadata={"extras": {"checkpoint": "c.s/Graph/t"}}))
    (one,) = cache.get(KEY, 3) or []
    assert (one.answer.text, one.answer.checkpoint) == ("", "c.s/Graph/t")


def test_the_least_recently_used_goes_first_when_the_bytes_are_used_up() -> None:
    one = HistoryCache(1 << 30, depth=5)
    one.loaded(one.load(KEY, 5, []), [exchange(1, 1000)])
    cache = HistoryCache(one.bytes * 3, depth=5)
    keys = [(name, "u") for name in "abcd"]
    for key in keys[:3]:
        cache.loaded(cache.load(key, 5, []), [exchange(1, 1000)])
    assert cache.get(keys[0], 1)
    cache.loaded(cache.load(keys[3], 5, []), [exchange(1, 1000)])

    assert len(cache) == 3
    assert cache.bytes == one.bytes * 3
    assert cache.get(keys[1], 1) is None
    assert all(cache.get(key, 1) for key in (keys[0], keys[2], keys[3]))
    for key in keys:
        cache.forget(key)
    assert cache.bytes == 0


def test_without_room_nothing_is_kept() -> None:
    cache = HistoryCache(0, depth=5)
    cache.begin(KEY)
    assert cache.loaded(cache.load(KEY, 5, []), [exchange(1)]) == [exchange(1)]
    assert cache.get(KEY, 1) is None
    assert len(cache) == cache.bytes == 0


def test_what_another_branch_has_superseded_is_read_anew() -> None:
    cache = HistoryCache(1_000_000, depth=3)
    cache.begin(KEY)
    first, second = turns(session(), 2)
    for record in (first, second, turn(second.session, "behind the newest", after_rank=3)):
        cache.append(KEY, record)
    assert [e.exchange_id for e in cache.get(KEY, 3) or []] == ["x1", "x2", "behind the newest"]
    loading = cache.load(KEY, 3, [first, second])
    failed = {"extras": {"error": "llm_timeout"}}
    cache.append(KEY, turn(second.session, "fork", "q", "sorry", metadata=failed, after_rank=1))
    assert (cache.get(KEY, 3), cache.bytes) == (None, 0), "however it ended"
    cache.loaded(loading, [])
    assert cache.get(KEY, 3) is None
