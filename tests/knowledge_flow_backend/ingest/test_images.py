"""Images are drawn anew by a parsing child: upright, small, and without what else their files say."""

import asyncio
import io
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageCms

from knowledge_flow_backend.ingest.pool import DrawnImage, ParserPool, ParserPoolRules
from knowledge_flow_backend.ingest.work import IMAGE, MAX_IMAGE_BYTES, Job
from knowledge_flow_backend.library.reasons import Reason, Refused
from tests.knowledge_flow_backend.ingest.test_bombs import GROWTH_MB, peak_mb
from tests.knowledge_flow_backend.ingest.test_fast import form, send
from tests.knowledge_flow_backend.ingest.test_pool import job
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.pictures import (
    MIMES,
    SECRET,
    animated,
    encoded,
    exchanged_profile,
    halves,
    of_so_many,
    opened,
    with_metadata,
)

pytestmark = pytest.mark.servers

PIXELS = 2048
RED, BLUE = (254, 0, 0), (0, 0, 254)


@pytest.fixture
async def pool() -> AsyncIterator[ParserPool]:
    made = ParserPool(ParserPoolRules(1, 1024, PATIENCE_S, base_s=PATIENCE_S))
    yield made
    await made.aclose()


def work(directory: Path, data: bytes) -> Job:
    return replace(job(directory, data, format_=IMAGE, name="a.png"), size=0, overlap=0)


async def redrawn(pool: ParserPool, directory: Path, data: bytes) -> tuple[DrawnImage, bytes]:
    drawn = await pool.redraw(work(directory, data), "ann", len(data))
    return drawn, (directory / "content").read_bytes()


async def refused(pool: ParserPool, directory: Path, data: bytes) -> Reason:
    with pytest.raises(Refused) as caught:
        await redrawn(pool, directory, data)
    assert not (directory / "content").exists()
    return caught.value.reason


def nearly(found: object, wanted: tuple[int, ...]) -> bool:
    """Whether two colours are the same but for what lossy formats change."""
    assert isinstance(found, tuple)
    return all(abs(one - other) <= 12 for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("format_", MIMES)
async def test_nothing_but_the_pixels_is_left(pool: ParserPool, tmp_path: Path, format_: str) -> None:
    data = with_metadata(format_)
    assert opened(data).getexif().get_ifd(0x8825)
    assert SECRET.encode() in data
    drawn, made = await redrawn(pool, tmp_path, data)
    assert drawn == DrawnImage(MIMES[format_], 64, 32)
    image = opened(made)
    assert (image.format, image.size) == (format_, (64, 32))
    assert dict(image.getexif()) == {}
    assert not {"exif", "xmp", "icc_profile", "comment", "Comment", "Author"} & set(image.info)
    assert not any(mark in made for mark in (SECRET.encode(), b"Exif", b"EXIF", b"xmpmeta", b"iCCP", b"ICC", b"tEXt"))
    assert nearly(image.getpixel((5, 5)), RED)
    assert nearly(image.getpixel((58, 5)), BLUE)


@pytest.mark.parametrize("orientation", range(1, 9))
async def test_an_image_is_turned_as_its_camera_was(pool: ParserPool, tmp_path: Path, orientation: int) -> None:
    """Where the red half is afterwards; the sides are exchanged for those that lay."""
    drawn, made = await redrawn(pool, tmp_path, with_metadata("JPEG", orientation))
    image = opened(made)
    lay = orientation >= 5
    assert (drawn.width, drawn.height) == image.size == ((32, 64) if lay else (64, 32))
    first_is_red = orientation in (1, 4, 5, 6)
    assert nearly(image.getpixel((5, 5)), RED if first_is_red else BLUE)
    assert nearly(image.getpixel((26, 58) if lay else (58, 26)), BLUE if first_is_red else RED)


@pytest.mark.parametrize("format_", MIMES)
@pytest.mark.parametrize("size", [(5000, 2500), (300, 6000), (20_000, 1), (2048, 2048), (1, 1)])
async def test_a_large_image_is_made_smaller_and_no_other(
    pool: ParserPool, tmp_path: Path, format_: str, size: tuple[int, int]
) -> None:
    if format_ == "WEBP":  # has no larger sides
        size = (min(size[0], 16_000), size[1])
    drawn, made = await redrawn(pool, tmp_path, encoded(Image.new("RGB", size, "red"), format_))
    scale = min(1, PIXELS / max(size))
    assert opened(made).size == (drawn.width, drawn.height)
    assert [drawn.width, drawn.height] == [max(1, round(side * scale)) for side in size]


async def test_what_is_made_is_bounded_in_bytes_too(pool: ParserPool, tmp_path: Path) -> None:
    def noise() -> bytes:
        image = Image.frombytes("RGBA", (2048, 2048), os.urandom(2048 * 2048 * 4))
        return encoded(image, "PNG", compress_level=1)

    drawn, made = await redrawn(pool, tmp_path, await asyncio.to_thread(noise))
    assert len(made) <= MAX_IMAGE_BYTES
    assert drawn.width == drawn.height == opened(made).width < PIXELS


@pytest.mark.parametrize("format_", ["PNG", "WEBP"])
async def test_of_a_moving_image_the_first_frame_is_kept(pool: ParserPool, tmp_path: Path, format_: str) -> None:
    _, made = await redrawn(pool, tmp_path, animated(format_))
    image = opened(made)
    assert getattr(image, "n_frames", 1) == 1
    assert nearly(image.getpixel((5, 5)), RED)


def palette() -> Image.Image:
    image = halves(mode="RGBA").convert("P")
    image.info["transparency"] = image.getpixel((0, 0))
    return image


KINDS: dict[str, tuple[str, Callable[[], Image.Image], tuple[int, ...]]] = {
    "grey": ("PNG", lambda: Image.new("L", (9, 9), 77), (77, 77, 77)),
    "black and white": ("PNG", lambda: Image.new("1", (9, 9), 1), (255, 255, 255)),
    "16 bits of grey": ("PNG", lambda: Image.new("I;16", (9, 9), 77 * 256), (77, 77, 77)),
    "grey with transparency": ("PNG", lambda: Image.new("LA", (9, 9), (77, 40)), (77, 77, 77, 40)),
    "transparent": ("PNG", lambda: Image.new("RGBA", (9, 9), (255, 0, 0, 99)), (255, 0, 0, 99)),
    "transparent WebP": ("WEBP", lambda: Image.new("RGBA", (9, 9), (255, 0, 0, 99)), (255, 0, 0, 99)),
    "a palette": ("PNG", lambda: halves().convert("P"), (255, 0, 0)),
    "a palette with a hole": ("PNG", palette, (255, 0, 0, 0)),
    "inks": ("JPEG", lambda: Image.new("CMYK", (9, 9), (0, 255, 255, 0)), (255, 0, 0)),
    "grey JPEG": ("JPEG", lambda: Image.new("L", (9, 9), 77), (77, 77, 77)),
}


@pytest.mark.parametrize(("format_", "make", "pixel"), KINDS.values(), ids=KINDS)
async def test_every_kind_of_pixels_becomes_red_green_and_blue(
    pool: ParserPool, tmp_path: Path, format_: str, make: Callable[[], Image.Image], pixel: tuple[int, ...]
) -> None:
    _, made = await redrawn(pool, tmp_path, encoded(make(), format_))
    image = opened(made)
    assert image.mode == ("RGBA" if len(pixel) == 4 else "RGB")
    assert nearly(image.getpixel((1, 1)), pixel)


async def test_colours_of_another_profile_become_those_of_srgb(pool: ParserPool, tmp_path: Path) -> None:
    for format_, mode in (("PNG", "RGB"), ("JPEG", "RGB"), ("WEBP", "RGBA"), ("PNG", "P")):
        red = encoded(Image.new("RGB", (9, 9), "red").convert(mode), format_, icc_profile=exchanged_profile())
        _, made = await redrawn(pool, tmp_path, red)
        pixel = opened(made).getpixel((1, 1))
        assert isinstance(pixel, tuple)
        assert nearly(pixel[:3], BLUE)
    of_others = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for broken in (b"no profile", of_others):
        _, made = await redrawn(pool, tmp_path, encoded(Image.new("RGB", (9, 9), "red"), "PNG", icc_profile=broken))
        assert nearly(opened(made).getpixel((1, 1)), RED)


@pytest.mark.parametrize("format_", MIMES)
async def test_a_bomb_is_refused_by_its_head(pool: ParserPool, tmp_path: Path, format_: str) -> None:
    """docs/trust.md#F12"""
    await redrawn(pool, tmp_path / "small", encoded(halves(), format_))
    pid = pool._idle[0]._process.pid
    before = peak_mb(pid)
    for width, height in ((10_000, 4_001), (16_383, 2_442), (6_325, 6_325)):
        assert await refused(pool, tmp_path / "bomb", of_so_many(format_, width, height)) is Reason.TOO_MANY_PIXELS
    assert peak_mb(pid) - before <= GROWTH_MB
    assert (pool.stats.started, pool.stats.died, pool.stats.killed) == (1, 0, 0)


async def test_what_is_no_image_is_refused_and_costs_no_child(pool: ParserPool, tmp_path: Path) -> None:
    """docs/trust.md#F12"""
    gif, tiff = (encoded(halves(), format_) for format_ in ("GIF", "TIFF"))
    for data in (b"<html><script>alert(1)</script>", b"", gif, tiff, b"GIF89a", b"\x89PNG", b"%PDF-1.4"):
        assert await refused(pool, tmp_path, data) in (Reason.NOT_AN_IMAGE, Reason.UNREADABLE)
    rest = random.Random(5)  # noqa: S311 - the same damage each time
    for format_ in MIMES:
        whole = encoded(Image.effect_noise((200, 200), 90).convert("RGB"), format_)
        for end in (12, 20, len(whole) // 2, len(whole) - len(whole) // 8):
            assert await refused(pool, tmp_path, whole[:end]) in (Reason.NOT_AN_IMAGE, Reason.UNREADABLE)
        for _ in range(20):  # anything but a dead child
            damaged = bytearray(with_metadata(format_))
            for _ in range(8):
                damaged[rest.randrange(len(damaged))] = rest.randrange(256)
            with suppress(Refused):
                await redrawn(pool, tmp_path, bytes(damaged))
            (tmp_path / "content").unlink(missing_ok=True)
    assert (pool.stats.started, pool.stats.died, pool.stats.killed) == (1, 0, 0)


@pytest.fixture
async def service(start_knowledge_flow: StartKnowledgeFlow) -> AsyncIterator[RunningKnowledgeFlow]:
    async with start_knowledge_flow(security=SECURITY) as running:
        yield running


async def test_an_image_is_given_back_and_not_kept(service: RunningKnowledgeFlow) -> None:
    data, headers = with_metadata("JPEG", 6), headers_of("ann")
    for name in ("photo.jpg", "photo.txt", "../../photo"):
        async with service.http.post(f"{BASE}/fast/image", data=form(name, data), headers=headers) as response:
            assert (response.status, response.content_type) == (200, "image/jpeg")
            assert (response.headers["X-Image-Width"], response.headers["X-Image-Height"]) == ("32", "64")
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert Image.open(io.BytesIO(await response.read())).size == (32, 64)
    directory = service.service.running.fast.staging._directory
    assert directory is not None
    left = await asyncio.to_thread(lambda: [one.name for one in directory.iterdir()])
    assert left == ["lock"]


async def test_a_request_without_an_image_is_refused(service: RunningKnowledgeFlow) -> None:
    for data, reason in (
        (b"<html></html>", "not_an_image"),
        (b"", "empty"),
        (encoded(halves(), "PNG")[:60], "unreadable"),
        (of_so_many("PNG", 9_000, 9_000), "too_many_pixels"),
    ):
        answer = await send(service, data, name="a.png", path="/fast/image", status=400)
        assert (answer["detail"]["code"], answer["detail"]["reason"]) == ("upload_processing_failed", reason)
    answer = await send(service, bytes(MAX_IMAGE_BYTES + 1), name="a.png", path="/fast/image", status=413)
    assert answer["detail"]["code"] == "too_large"
    async with service.http.post(f"{BASE}/fast/image", data=form("a.png", b"x")) as response:
        assert response.status == 401


async def test_images_are_decoded_by_no_service() -> None:
    """What reads untrusted bytes has no business where the secrets are. (pypdf loads a part of Pillow, no decoder.)"""
    looked_at = "'PIL.ImageFile' in sys.modules, 'knowledge_flow_backend.ingest.images' in sys.modules"
    program = f"import sys, agentic_backend.app, knowledge_flow_backend.app; print({looked_at})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"False False\n"
