"""Where what comes with the code is: configuration files, documentation, the sample."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def checkout() -> Path | None:
    """The directory of the checkout that this code runs from; None in an installed wheel."""
    return None if (_PACKAGE / "data").is_dir() else _PACKAGE.parent


def data_directory() -> Path:
    """What has `config/`, `docs/` and README.md below it: the checkout, or what the wheel carries of it."""
    return checkout() or _PACKAGE / "data"
