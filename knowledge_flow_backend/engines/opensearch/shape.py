"""Creates the index in OpenSearch under an alias, and compares it with what Postgres knows of it."""

from typing import Final

from knowledge_flow_backend.engines.opensearch.body import Shape, index_body, misfit
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.errors import SchemaMismatch

ENGINE: Final = "opensearch"
_DIGITS: Final = 6


def numbered(alias: str, number: int) -> str:
    """The name of an index behind an alias: the first is `<alias>-000001`."""
    return f"{alias}-{number:0{_DIGITS}}"


def number_of(name: str) -> int:
    """The number in an index's name; 0 where it has none of ours."""
    digits = name.rpartition("-")[2]
    return int(digits) if len(digits) == _DIGITS and digits.isdecimal() else 0


async def indices_of(cluster: Cluster, alias: str) -> list[str]:
    """Our indices for an alias, whether it stands for them or not. Raises `IndexUnavailable`."""
    there = await cluster.mappings(f"{alias}-*")
    return [name for name in there if name == numbered(alias, number_of(name))]


async def make_index(cluster: Cluster, alias: str, shape: Shape) -> None:
    """Create the first index behind the alias. An existing one is kept where it fits.

    Raises `SchemaMismatch`, `IndexUnavailable`.
    """
    if not await cluster.mappings(alias):
        taken = max((number_of(name) for name in await indices_of(cluster, alias)), default=0)
        await cluster.create(numbered(alias, taken + 1), alias, index_body(shape))
    await check_index(cluster, alias, shape)


async def check_index(cluster: Cluster, alias: str, shape: Shape) -> None:
    """Raises `SchemaMismatch` where no index is behind the alias, or one that does not fit; `IndexUnavailable`."""
    mappings = await cluster.mappings(alias)
    if not mappings:
        raise SchemaMismatch(
            f"OpenSearch has no index {alias!r}, whose documents are in Postgres: run `knowledge-flow reindex`"
        )
    if len(mappings) > 1:
        raise SchemaMismatch(f"{alias!r} stands for several indices in OpenSearch: {', '.join(sorted(mappings))}")
    ((name, mapping),) = mappings.items()
    if name == alias:
        raise SchemaMismatch(f"{alias!r} is an index in OpenSearch, it must be an alias of one")
    if (why := misfit(mapping, shape)) is not None:
        raise SchemaMismatch(
            f"index {name!r} in OpenSearch will not do: {why}; run `knowledge-flow reindex`, or name another "
            "storage.vector_store.index"
        )
