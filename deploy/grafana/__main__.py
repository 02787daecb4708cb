"""`python -m deploy.grafana` rewrites the dashboards' JSON; a test compares it with the Python."""

import json
import sys
from pathlib import Path

from deploy.grafana.boards import all_dashboards

DIRECTORY = Path(__file__).parent / "dashboards"


def files() -> dict[str, str]:
    """File name to content of every dashboard."""
    return {
        f"{dashboard.uid}.json": json.dumps(dashboard.json(), indent=2, sort_keys=True) + "\n"
        for dashboard in all_dashboards()
    }


def main() -> int:
    """Write every dashboard and remove stale files. Raises OSError."""
    wanted = files()
    DIRECTORY.mkdir(exist_ok=True)
    for file in DIRECTORY.glob("*.json"):
        if file.name not in wanted:
            file.unlink()
    for name, content in wanted.items():
        (DIRECTORY / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
