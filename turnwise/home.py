"""Where the local start keeps its data (`$TURNWISE_HOME`, else `.turnwise/` in the checkout) and finds its resources.

Postgres refuses to run as root, so root's servers run as `nobody`, who must be able to reach the directory. Where the
checkout is closed to others (a mode-700 home), root's data therefore lives in `/var/lib/turnwise-<hash of checkout>`,
or under the temporary directory where `/var/lib` cannot be written.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import Unusable

PACKAGE = Path(__file__).parent
PASSWORD_FILE = "postgres-password"  # noqa: S105 - the name of a file
"""In the data directory: the password of the embedded Postgres, readable by its owner alone."""


def checkout(package: Path = PACKAGE) -> Path | None:
    """The root of the checkout that this code runs from; None in an installed wheel."""
    return None if (package / "data").is_dir() else package.parent


def resource_directory(package: Path = PACKAGE) -> Path:
    """The directory that holds `config/`, `docs/` and README.md: the checkout, or the copy inside the wheel."""
    return checkout(package) or package / "data"


def choose_home(checkout: Path, environ: Mapping[str, str]) -> Path:
    """The data directory, created if absent. Raises `Unusable`, which says what to do, if none can be used."""
    wanted = environ.get("TURNWISE_HOME")
    if wanted:
        return _created(Path(wanted).absolute())
    if os.geteuid() != 0 or closed_to_others(checkout) is None:
        return _created(checkout / ".turnwise")
    return _require_own(_created(_shared_home(checkout)))


def stored_password(checkout: Path, environ: Mapping[str, str]) -> str | None:
    """The password of the embedded Postgres whose data `choose_home` has placed; None before its first start, and for
    those who may not read it. Creates nothing."""
    try:
        return (find_home(checkout, environ) / PASSWORD_FILE).read_text().strip()
    except (OSError, Unusable):
        return None


def find_home(checkout: Path, environ: Mapping[str, str]) -> Path:
    """The data directory that `choose_home` would choose, whether it is there or not. Raises `Unusable` where no place
    would do."""
    wanted = environ.get("TURNWISE_HOME")
    if wanted:
        return Path(wanted).absolute()
    in_checkout = os.geteuid() != 0 or closed_to_others(checkout) is None
    return checkout / ".turnwise" if in_checkout else _shared_home(checkout)


def _shared_home(checkout: Path) -> Path:
    places = [place for place in (Path("/var/lib"), Path(tempfile.gettempdir()), Path("/tmp")) if _open_to_all(place)]  # noqa: S108 - _require_own checks whose it is
    if not places:
        raise Unusable("no directory that user nobody can reach: set TURNWISE_HOME to one")
    return places[0] / f"turnwise-{hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]}"


def closed_to_others(path: Path) -> Path | None:
    """The first of `path` and its parents that other users may not traverse; None if they may traverse all."""
    for directory in (path, *path.parents):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return directory
    return None


def _open_to_all(place: Path) -> bool:
    return place.is_dir() and os.access(place, os.W_OK) and closed_to_others(place) is None


def _require_own(home: Path) -> Path:
    """Refuse a directory that another user created under our name in a shared place."""
    details = home.lstat()
    if not stat.S_ISDIR(details.st_mode) or details.st_uid != os.geteuid():
        raise Unusable(f"{home} does not belong to this user: remove it or set TURNWISE_HOME")
    return home


def _created(home: Path) -> Path:
    """Create the directory if absent, traversable for the user that Postgres runs as."""
    try:
        if not home.is_dir():
            home.mkdir(parents=True)
            if os.geteuid() == 0:  # whatever the umask
                home.chmod(0o755)
    except OSError as error:
        raise Unusable(f"cannot use {home} ({error.strerror}): set TURNWISE_HOME to a writable directory") from None
    if not os.access(home, os.W_OK | os.X_OK):
        raise Unusable(f"cannot write to {home}: set TURNWISE_HOME to a writable directory")
    if os.geteuid() == 0 and (closed := closed_to_others(home)) is not None:
        raise Unusable(
            f"{closed} is closed to user nobody, as whom Postgres runs when started by root: "
            "set TURNWISE_HOME to a directory that everyone may pass"
        )
    return home
