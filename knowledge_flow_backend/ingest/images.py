"""Makes of an untrusted image one that holds nothing but its pixels; runs in a parsing child, which alone loads Pillow.

What a camera or an editor wrote beside the pixels (where and when a photo was taken, by whom, thumbnails of what was
cut away) is not copied: the image is drawn again, upright and in sRGB.
"""

import io
import struct
from pathlib import Path
from typing import Any, Final

from PIL import (
    ExifTags,
    Image,
    ImageCms,
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401 - its format is known then; Pillow loads all forty to find it otherwise
)

from knowledge_flow_backend.ingest.work import BROKEN_INPUT, MAX_IMAGE_BYTES, Job
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_SIDE: Final = 2048
"""Pixels of the longer side of what is made."""
MAX_PIXELS: Final = 40_000_000
"""Of what is read: its decoder needs 4 bytes for each, and some twice as many."""
_SHRINK: Final = 0.7
"""Of its sides, what is left of an image that would be too large in bytes."""
_FORMATS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "PNG": ("image/png", {"optimize": True}),
    "JPEG": ("image/jpeg", {"quality": 90, "optimize": True}),
    "WEBP": ("image/webp", {"quality": 90}),
}
_BROKEN: Final = (*BROKEN_INPUT, OSError, struct.error)
"""What Pillow raises for files that are cut off or break their format."""

# Its own bound is a warning, and an error at twice as many: ours is `MAX_PIXELS`.
Image.MAX_IMAGE_PIXELS = None


def redraw(job: Job) -> dict[str, Any]:
    """Re-encode the image of the job into its `content`; returns `{"mime", "width", "height"}`. Raises `Refused`."""
    data = Path(job.source).read_bytes()
    try:
        format_, image = _opened(data)
        image = _upright_srgb(image, keep_alpha=format_ != "JPEG")
    except UnidentifiedImageError:
        raise Refused(Reason.NOT_AN_IMAGE) from None
    except _BROKEN:
        raise Refused(Reason.UNREADABLE) from None
    mime, options = _FORMATS[format_]
    made = _written(image, format_, options)
    while len(made) > MAX_IMAGE_BYTES:
        image = image.resize([max(1, int(side * _SHRINK)) for side in image.size])
        made = _written(image, format_, options)
    Path(job.content).write_bytes(made)
    return {"mime": mime, "width": image.width, "height": image.height}


def _opened(data: bytes) -> tuple[str, Image.Image]:
    """The format and the first frame, decoded once its header has shown its size."""
    image = Image.open(io.BytesIO(data), formats=tuple(_FORMATS))
    if image.width * image.height > MAX_PIXELS:
        raise Refused(Reason.TOO_MANY_PIXELS)
    # Photos with a second picture for a screen in 3D are JPEG to anyone else.
    format_ = "JPEG" if image.format == "MPO" else str(image.format)
    # A JPEG can be decoded at a half, a quarter, or an eighth of its size, which needs as much less memory.
    image.draft(None, (MAX_SIDE, MAX_SIDE))
    image.load()
    return format_, image


def _upright_srgb(image: Image.Image, *, keep_alpha: bool) -> Image.Image:
    """A copy within `MAX_SIDE`, as it is meant to be seen, with no more than its pixels."""
    turn, profile = _turn(image), image.info.get("icc_profile")
    if image.mode.startswith(("I", "F")):
        image = _eight_bits(image)
    wanted = "RGBA" if image.has_transparency_data else image.mode if image.mode in ("L", "CMYK") else "RGB"
    if image.mode != wanted:
        image = image.convert(wanted)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    if profile:
        image = _in_srgb(image, profile)
    image = image.convert("RGBA" if keep_alpha and image.mode == "RGBA" else "RGB")
    if turn is not None:
        image = image.transpose(turn)
    image.info.clear()
    return image


_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright, by the orientation that its EXIF names."""


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _BROKEN:  # what stands beside the pixels is broken: they are not
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Of a grey image with 16 bits a pixel, the upper eight."""
    return image.convert("I").point(lambda value: value / 256).convert("L")


def _in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    mode = "RGBA" if image.mode == "RGBA" else "RGB"
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        drawn = ImageCms.profileToProfile(image, given, ImageCms.createProfile("sRGB"), outputMode=mode)
    except (ImageCms.PyCMSError, *_BROKEN):  # a profile of another kind of image, or none at all
        return image
    return image if drawn is None else drawn


def _written(image: Image.Image, format_: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()
