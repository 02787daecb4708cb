"""Images as cameras, editors and mischief makers write them."""

import io
import struct
import zlib
from typing import Any, Final

from PIL import ExifTags, Image, ImageCms, PngImagePlugin

MIMES: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
SECRET: Final = "Rue des Secrets 7"
"""Stands in everything that a picture of `with_metadata` says beside its pixels."""
PLACE: Final = (48.0, 51.0, 29.0)
"""A latitude, in degrees, minutes and seconds."""


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    """An image that is read whole."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def halves(size: tuple[int, int] = (64, 32), mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new(mode, size, "red")
    image.paste(Image.new(mode, (size[0] - size[0] // 2, size[1]), "blue"), (size[0] // 2, 0))
    return image


def with_metadata(format_: str, orientation: int = 1, size: tuple[int, int] = (64, 32)) -> bytes:
    """Two halves with all that their format can say beside them: EXIF with a place, XMP, a profile, and texts."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Artist] = exif[ExifTags.Base.ImageDescription] = SECRET
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({ExifTags.GPS.GPSLatitudeRef: "N", ExifTags.GPS.GPSLatitude: PLACE})
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    xmp = f"<x:xmpmeta xmlns:x='adobe:ns:meta/'>{SECRET}</x:xmpmeta>"
    more: dict[str, Any] = {"xmp": xmp.encode()}
    if format_ == "PNG":
        texts = PngImagePlugin.PngInfo()
        texts.add_text("Comment", SECRET)
        texts.add_text("Author", SECRET, zip=True)
        texts.add_itxt("XML:com.adobe.xmp", xmp)
        more = {"pnginfo": texts}
    elif format_ == "JPEG":
        more |= {"comment": SECRET, "quality": 95}
    else:
        more |= {"quality": 95}
    return encoded(halves(size), format_, exif=exif, icc_profile=profile, **more)


def animated(format_: str) -> bytes:
    """A red frame, then a blue one."""
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
    return encoded(frames[0], format_, save_all=True, append_images=frames[1:], duration=100)


def exchanged_profile() -> bytes:
    """A profile of colours whose red is what others call blue."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"????", 1).replace(b"bXYZ", b"rXYZ", 1).replace(b"????", b"bXYZ", 1)


def of_so_many(format_: str, width: int, height: int) -> bytes:
    """A file whose head alone says that it has so many pixels, of which nothing follows."""
    data = bytearray(encoded(Image.new("RGB", (8, 8)), format_))
    if format_ == "PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif format_ == "JPEG":
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    else:
        # The frames of one that moves need not cover its canvas.
        data = bytearray(animated(format_))
        data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)
