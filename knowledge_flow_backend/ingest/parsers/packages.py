"""Checks on office files, which are ZIP archives of XML, before a library may open one."""

import io
import re
import zipfile
import zlib

from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_ENTRIES = 10_000
MAX_BYTES = 256 * 1024 * 1024
"""Unpacked, in all: media too, which the libraries load with the rest."""
MAX_TREE_BYTES = 48 * 1024 * 1024
"""Of one part that is read into a tree, which takes ten times its size."""
MAX_TREE_TAGS = 1_000_000
"""Of such a part, counted where they begin and where they end: each costs its reader 10 to 30 µs, however short it is.
A book of 1,000 pages has 300,000."""
MAX_RATIO = 150
"""Of unpacked to packed size. Text reaches 30; a sheet of equal rows 100."""
_SMALL = 8 * 1024 * 1024
"""Up to this size nothing is a bomb, whatever its ratio."""
_READ_BYTES = 1024 * 1024
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_ENCRYPTED_ENTRY = 0x1
_XML = (".xml", ".rels", ".vml")
_ENCODING = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([^"']*)""")
_ENCODINGS = frozenset({b"utf-8", b"utf-16", b"us-ascii"})
# A document type, where entities are declared: the format forbids it, and expat would expand what stands in it.
_DOCTYPE = tuple("<!DOCTYPE".encode(charset) for charset in ("utf-8", "utf-16-le", "utf-16-be"))


def check(data: bytes, tree: str = "") -> None:
    """Refuse what no library should open. Below the folder `tree` parts become trees, and are bounded as such.

    Raises `Refused`: `encrypted`, `unreadable` for what is no archive or declares entities, `unpacks_too_large` for a
    bomb, `too_complex` for a tree of too many tags. Archives within the archive are not opened by anyone.
    """
    if data.startswith(_OLE):
        raise Refused(Reason.ENCRYPTED if _ENCRYPTED in data else Reason.UNREADABLE)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_sizes(entries, tree)
            for entry in entries:
                if entry.filename.lower().endswith(_XML):
                    _check_xml(archive, entry, MAX_TREE_TAGS if _is_tree(entry.filename, tree) else None)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError):
        raise Refused(Reason.UNREADABLE) from None


def _check_sizes(entries: list[zipfile.ZipInfo], tree: str) -> None:
    """By what the directory says; a part that holds more is cut there by the library, and fails its checksum."""
    if any(entry.flag_bits & _ENCRYPTED_ENTRY for entry in entries):
        raise Refused(Reason.ENCRYPTED)
    unpacked = sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    bomb = unpacked > _SMALL and unpacked > packed * MAX_RATIO
    part = max((entry.file_size for entry in entries if _is_tree(entry.filename, tree)), default=0)
    if len(entries) > MAX_ENTRIES or unpacked > MAX_BYTES or part > MAX_TREE_BYTES or bomb:
        raise Refused(Reason.UNPACKS_TOO_LARGE)


def _is_tree(name: str, tree: str) -> bool:
    return bool(tree) and name.startswith(tree) and name.lower().endswith(_XML)


def _check_xml(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, max_tags: int | None) -> None:
    """Read the part once, a megabyte at a time."""
    tags = 0
    overlap = max(len(mark) for mark in _DOCTYPE) - 1
    tail = b""
    with archive.open(entry) as part:
        while piece := part.read(_READ_BYTES):
            if not tail and not _is_plain(piece):
                raise Refused(Reason.UNREADABLE)
            window = tail + piece
            if any(mark in window for mark in _DOCTYPE):
                raise Refused(Reason.UNREADABLE)
            tags += piece.count(b"<")
            if max_tags is not None and tags > max_tags:
                raise Refused(Reason.TOO_COMPLEX)
            tail = window[-overlap:]


def _is_plain(beginning: bytes) -> bool:
    """Whether a part is in one of the encodings that the format allows, so that its marks can be found."""
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff", b"<\x00", b"\x00<")):
        return True
    declared = _ENCODING.match(beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:200])
    return declared is None or declared[1].lower() in _ENCODINGS
