"""Debian's Redis as the tests start and stop it: a server, one with TLS, and a primary that Sentinels watch."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import mkdtemp

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

_NOTHING_KEPT = ("--save", "", "--appendonly", "no", "--daemonize", "no", "--bind", "127.0.0.1")


@dataclass(slots=True)
class RedisServer:
    """One server of these arguments on a port of its own, which can be stopped and started again."""

    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    tls: bool = False
    directory: Path = field(default_factory=lambda: Path(mkdtemp(prefix="turnwise-test-redis-")))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        program = shutil.which("redis-server")
        assert program is not None
        ports = ("--port", "0", "--tls-port", str(self.port)) if self.tls else ("--port", str(self.port))
        command = [program, *self.arguments, *ports, *_NOTHING_KEPT, "--dir", str(self.directory)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                with_parent_death_signal(command, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + PATIENCE_S
        while not _accepts(self.port):
            assert self.process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < give_up_at, (self.directory / "log").read_text()
            time.sleep(0.02)

    def say(self, *command: str, password: str | None = None) -> str:
        """What it answers to a command."""
        secret = () if password is None else ("--no-auth-warning", "-a", password)
        line = ["redis-cli", "-p", str(self.port), *secret, *command]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip()

    def stop(self) -> None:
        """Kill it, as a machine that fails does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None

    def send(self, signal_number: int) -> None:
        """Send its process a signal."""
        assert self.process is not None
        self.process.send_signal(signal_number)


@contextmanager
def redis_server(*arguments: str, tls: bool = False) -> Iterator[RedisServer]:
    """A server that ends with the block."""
    server = RedisServer(arguments, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.directory)


@dataclass(slots=True)
class Watched:
    """A primary and its replica, under `name` at three Sentinels."""

    name: str
    primary: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]


@contextmanager
def watched_pair(name: str = "turns") -> Iterator[Watched]:
    """A primary, a replica and three Sentinels, which give the primary up half a second after it is silent."""
    with redis_server() as primary, redis_server("--replicaof", f"127.0.0.1 {primary.port}") as replica:
        sentinels = [_sentinel(name, primary.port) for _ in range(3)]
        try:
            for sentinel in sentinels:
                sentinel.start()
            _await_others(sentinels, name)
            yield Watched(name, primary, replica, sentinels)
        finally:
            for sentinel in sentinels:
                sentinel.stop()
                shutil.rmtree(sentinel.directory)


def _sentinel(name: str, port: int) -> RedisServer:
    made = RedisServer()
    file = made.directory / "sentinel.conf"  # it writes down there what it has found out
    file.write_text(
        f"sentinel monitor {name} 127.0.0.1 {port} 2\n"
        f"sentinel down-after-milliseconds {name} 500\n"
        f"sentinel failover-timeout {name} 3000\n"
    )
    made.arguments = (str(file), "--sentinel")
    return made


def _await_others(sentinels: list[RedisServer], name: str) -> None:
    """Until each knows the other two and the replica: before, none can decide anything."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not all(_knows(sentinel, name) for sentinel in sentinels):
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def _knows(sentinel: RedisServer, name: str) -> bool:
    lines = sentinel.say("sentinel", "master", name).splitlines()
    facts = dict(zip(lines[::2], lines[1::2], strict=True))
    return facts["num-other-sentinels"] == "2" and facts["num-slaves"] == "1"


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


def self_signed(directory: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """The files of a certificate for this address, which is its own authority, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "turnwise tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / f"{address}.crt", directory / f"{address}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files[1].write_bytes(secret)
    return files
