"""How the compression bench makes bodies, and from what it says that an encoding pays."""

import json

import pytest

from tests.bench.compressing import body_of, decoded, encoded
from tests.bench.compression import ENCODINGS, SIZES, Measured, Round, pays_below, pays_from


def measured(*rounds: tuple[float, int]) -> Measured:
    """Rounds of milliseconds of CPU, half of it of each side, and bytes."""
    return Measured([Round(0.0, 0.0, ms * 500, ms * 500, wire) for ms, wire in rounds])


@pytest.mark.parametrize("size", [400, *SIZES])
def test_a_body_is_json_of_its_size_and_comes_back(size: int) -> None:
    body = body_of(size)
    assert len(body) == size
    assert all(hit["text"] for hit in json.loads(body)["hits"])
    for encoding in ENCODINGS:
        assert decoded(encoded(body, encoding), encoding) == body


@pytest.mark.parametrize(
    ("ours", "bits"),
    [
        (measured((2.0, 500), (2.0, 500), (9.0, 500)), 500 * 8 / 1e-3),
        (measured((0.5, 500), (0.5, 500), (0.5, 500)), float("inf")),
        (measured((0.5, 1000), (0.5, 1000), (0.5, 1000)), 0.0),
        (measured((2.0, 1500), (2.0, 1500), (2.0, 1500)), 0.0),
    ],
    ids=["later", "sooner", "saves nothing", "grows"],
)
def test_it_pays_below_the_bandwidth_at_which_the_bytes_saved_take_as_long(ours: Measured, bits: float) -> None:
    assert pays_below(ours, measured((1.0, 1000), (1.0, 1000), (1.0, 1000))) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("link", "size"), [(1e6, 1), (5e7, 16), (2e8, 256), (1e9, None)], ids=["slow", "a gap below", "fast", "faster"]
)
def test_it_pays_from_the_size_above_which_every_one_pays(link: float, size: int | None) -> None:
    points = [(1, 9e7), (4, 3e7), (16, 1e8), (64, 1.5e8), (256, 5e8)]
    assert pays_from(points, link) == size
