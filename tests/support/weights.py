"""The weights of the local embedder: fetched once for all tests of this machine, whatever checkout they are of."""

import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from knowledge_flow_backend.embed.weights import VERSION, put_weights
from knowledge_flow_backend.settings import default_home
from tests.support.ports import free_port


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


def no_index() -> dict[str, str]:
    """The environment of a machine that reaches no package index: variables for pip and uv, which then give up soon."""
    nowhere = f"http://127.0.0.1:{free_port()}/simple"
    return {
        "PIP_INDEX_URL": nowhere,
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "UV_DEFAULT_INDEX": nowhere,
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CACHE": "1",
        "UV_NO_CONFIG": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
