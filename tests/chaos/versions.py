"""A deploy over changes of the schema: instances of two versions side by side, at each step (fleet)."""

import asyncio
import shutil
import signal
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import psycopg

from backend_kit.db.schema import newest_revision
from tests.chaos.deployment import Deployment, Service, Size
from tests.chaos.fleet import ID, LONG, deploy_rows, instances, settled
from tests.chaos.ledger import Ledger
from tests.chaos.load import create_session
from tests.chaos.rows import Row, all_of, exactly
from tests.chaos.travellers import travellers
from tests.support.rest import rest_client

ROOT = Path(__file__).parents[2]
_SCRIPTS = "agentic_backend/persist/migrations"
_SCRIPT = '''"""Of a version to come."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
works_from = "{works_from}"


def upgrade() -> None:
    for statement in {statements!r}:
        op.execute(statement)
'''
_TABLES = ("session", "session_history", "session_lease", "instance")
_EXPAND = (
    *(f"ALTER TABLE {table} ADD COLUMN to_come text NOT NULL DEFAULT 'none'" for table in _TABLES),
    "CREATE TABLE to_come (id text PRIMARY KEY)",
)
_CONTRACT = (*(f"ALTER TABLE {table} DROP COLUMN to_come" for table in _TABLES), "DROP TABLE to_come")


@dataclass(frozen=True, slots=True)
class _Version:
    """A program, as its tree and the newest revision that it knows."""

    name: str
    tree: Path

    @property
    def revision(self) -> str:
        return newest_revision(self.tree / _SCRIPTS)


async def versions(deployment: Deployment, size: Size) -> list[Row]:
    """30 clients (60 in the full form), 3 instances: from the last release to a version that adds to the schema, from
    that to one that removes; each instance replaced in turn, and one of the older version killed and started again in
    between."""
    clients = size.pick(30, 60)
    draw = deployment.draw("versions")
    ledger = Ledger()
    old, expanding, contracting = await asyncio.to_thread(_three, deployment.directory / "versions")
    trees = [old.tree] * 3
    async with instances(deployment, 3, trees=trees, model=LONG) as (services, _), rest_client() as http:
        sessions = [await create_session(http, services[0].address) for _ in range(clients)]
        addresses = [service.address for service in services]
        async with travellers(addresses, ledger, draw, sessions, pause_s=1.0) as crowd:
            await crowd.answered(clients)
            back = 0
            for before, version in ((old, expanding), (expanding, contracting)):
                await _replace(services[0], version)
                await services[1].kill()
                await services[1].start()  # the older program, over the schema of the newer one
                back += await _works_over(services[1], before, version)
                for service in services[1:]:
                    await _replace(service, version)
            await crowd.pause()
            found = crowd.findings()
            report = await settled(services, http, ledger)
        refused = await _is_refused(services[0], old, contracting)
    what = f"{old.name}, then a version that adds to the schema, then one that removes, {clients} clients"
    return [
        *deploy_rows(what, found, report),
        all_of(ID, f"{what}: older programs killed and ready again over the newer schema", back, of=2, unit="starts"),
        exactly(ID, f"{what}: the oldest over the schema of the newest is refused with words", refused, 1),
    ]  # fmt: skip


async def _replace(service: Service, version: _Version) -> None:
    service.send(signal.SIGTERM)
    if code := await service.ended():
        raise RuntimeError(f"an instance ended with {code}")
    service.tree = version.tree
    await service.start()
    await asyncio.sleep(1.0)


async def _works_over(service: Service, program: _Version, schema: _Version) -> bool:
    """Whether the program is ready and says that it works with the schema, which is that of the newer one."""
    revision = await asyncio.to_thread(_revision_in, service.database.dsn)
    await service.line(rf"schema revision {revision}, this version .* up to {program.revision} and works with it")
    status, _ = await service.ask_status("/ready")
    return status == 200 and revision == schema.revision > program.revision


def _revision_in(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        ((revision,),) = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return str(revision)


async def _is_refused(service: Service, old: _Version, newest: _Version) -> int:
    service.send(signal.SIGTERM)
    await service.ended()
    service.tree = old.tree
    await service.start(path=None)
    await service.line(rf"schema revision {newest.revision}, this version .* up to {old.revision}: start the newer")
    status, _ = await service.ask_status("/ready")
    return int(status == 503)


def _three(directory: Path) -> tuple[_Version, _Version, _Version]:
    """The last release, as far as the repository's history tells it, else this version; and two versions to come."""
    old, expanding, contracting = (_Version(name, directory / name) for name in ("old", "expanding", "contracting"))
    release = _release_to(old.tree)
    for tree in (expanding.tree, contracting.tree) if release else (old.tree, expanding.tree, contracting.tree):
        _copy_to(tree)
    adding = _add_script(expanding, old.revision, _EXPAND)
    shutil.copy(adding, contracting.tree / _SCRIPTS / "versions")
    _add_script(contracting, contracting.revision, _CONTRACT)
    return _Version(release or "this version", old.tree), expanding, contracting


def _release_to(tree: Path) -> str | None:
    """Unpack the last release; its tag, None where the history has none (a shallow clone, an archive)."""
    git = ["git", "-C", str(ROOT)]
    told = subprocess.run([*git, "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False)
    if told.returncode:
        return None
    tag = told.stdout.strip()
    packed = subprocess.run([*git, "archive", tag, "agentic_backend", "backend_kit"], capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tag


def _copy_to(tree: Path) -> None:
    for package in ("agentic_backend", "backend_kit"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))


def _add_script(version: _Version, works_from: str, statements: tuple[str, ...]) -> Path:
    before = version.revision
    revision = f"{int(before) + 1:04}"
    script = version.tree / _SCRIPTS / "versions" / f"r{revision}_to_come.py"
    script.write_text(
        _SCRIPT.format(revision=revision, before=before, works_from=works_from, statements=list(statements))
    )
    return script
