"""Where the data goes, for root and for others."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import public_directory
from turnwise.errors import StartRefused
from turnwise.home import choose_home, closed_to_others

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root's servers run as nobody")


@pytest.fixture
def public() -> Iterator[Path]:
    place = public_directory("turnwise-test-home-")
    yield place
    shutil.rmtree(place)


def test_it_is_beside_the_code(public: Path) -> None:
    assert choose_home(public, {}) == public / ".turnwise"
    assert (public / ".turnwise").is_dir()


def test_a_wish_is_honoured(public: Path) -> None:
    assert choose_home(public, {"TURNWISE_HOME": str(public / "a/b")}) == public / "a/b"


@as_root
def test_a_wish_that_nobody_cannot_reach_is_refused_by_name(public: Path) -> None:
    (public / "closed").mkdir(mode=0o700)
    with pytest.raises(StartRefused, match=f"{public}/closed is closed to user nobody"):
        choose_home(public, {"TURNWISE_HOME": str(public / "closed/home")})


@as_root
def test_a_checkout_that_nobody_cannot_reach_has_its_data_elsewhere(public: Path) -> None:
    checkout = public / "closed/checkout"
    checkout.mkdir(parents=True)
    checkout.parent.chmod(0o700)
    home = choose_home(checkout, {})
    try:
        assert home == choose_home(checkout, {})
        assert not home.is_relative_to(public)
        assert closed_to_others(home) is None
        other = public / "closed/other"
        other.mkdir()
        another = choose_home(other, {})
        another.rmdir()
        assert another != home
    finally:
        home.rmdir()


@as_root
def test_a_directory_that_a_stranger_made_is_not_taken_for_ours(public: Path) -> None:
    checkout = public / "closed"
    checkout.mkdir(mode=0o700)
    home = choose_home(checkout, {})
    try:
        os.chown(home, 65534, 65534)
        with pytest.raises(StartRefused, match="does not belong to this user"):
            choose_home(checkout, {})
    finally:
        home.rmdir()


def test_a_home_that_is_a_file_is_refused(public: Path) -> None:
    (public / "file").touch()
    with pytest.raises(StartRefused, match="set TURNWISE_HOME to a writable directory"):
        choose_home(public, {"TURNWISE_HOME": str(public / "file")})


def test_the_umask_does_not_close_it(public: Path) -> None:
    before = os.umask(0o077)
    try:
        home = choose_home(public, {})
    finally:
        os.umask(before)
    assert os.geteuid() != 0 or home.stat().st_mode & 0o777 == 0o755
