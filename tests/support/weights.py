"""The weights of the local embedder: fetched once for all tests of this machine, whatever checkout they are of."""

import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from knowledge_flow_backend.embed.local import default_home
from knowledge_flow_backend.embed.weights import VERSION, put_weights


@functools.cache
def weights() -> Path:
    """The directory of the two files, in the user's cache. A second process waits for the first one's."""
    place = default_home(os.environ)
    kept = place / f"weights-{VERSION}"
    half = kept.with_suffix(".half")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "weights.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory(prefix=".weights-", dir=place) as fresh:
                put_weights(Path(fresh), None, os.environ)
                shutil.copytree(fresh, half, dirs_exist_ok=True)
                half.rename(kept)
    return kept
