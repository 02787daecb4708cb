"""What SQLAlchemy tells the listeners of an engine."""

from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.engine.interfaces import CacheStats


def test_the_context_of_a_statement_says_whether_it_was_compiled_for_it() -> None:
    """backend_kit/db/pool.py counts the statements that are compiled when they are executed, by `cache_hit`."""
    seen: list[CacheStats] = []

    def listen(_conn: object, _cursor: object, _statement: str, _parameters: object, context: Any, _many: bool) -> None:
        seen.append(context.cache_hit)

    engine = create_engine("sqlite://")
    event.listen(engine, "before_cursor_execute", listen)
    statement = text("SELECT :one")
    with engine.connect() as connection:
        for number in range(3):
            connection.execute(statement, {"one": number})
    engine.dispose()
    assert seen == [CacheStats.CACHE_MISS, CacheStats.CACHE_HIT, CacheStats.CACHE_HIT]
