"""Where what comes with the code is: configuration files, documentation, the sample."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def checkout(package: Path = PACKAGE) -> Path | None:
    """The directory of the checkout that this code runs from; None in an installed wheel."""
    return None if (package / "data").is_dir() else package.parent


def data_directory(package: Path = PACKAGE) -> Path:
    """What has `config/`, `docs/` and README.md below it: the checkout, or what the wheel carries of it."""
    return checkout(package) or package / "data"
