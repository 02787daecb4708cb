"""Prints a markdown page of docs/ to PDF with Chromium: how config/samples/turnwise-operations.pdf was made.

    python -m tests.docs.print_pdf docs/operations.md config/samples/turnwise-operations.pdf

Run it again after the page has changed; needs `chromium` on the PATH.
"""

import argparse
import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.patience import PATIENCE_S

STYLE = """
@page { size: A4; margin: 18mm 17mm; }
body { font: 10.5pt/1.5 "DejaVu Serif", Georgia, serif; color: #1d2224; }
h1, h2, h3 { font-family: "DejaVu Sans", system-ui, sans-serif; line-height: 1.25; break-after: avoid; }
code, pre { font: 0.85em/1.45 "DejaVu Sans Mono", Menlo, monospace; }
pre { padding: 8pt; background: #f3f3ef; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 9pt; }
th, td { padding: 3pt 5pt; border: 0.5pt solid #b9b9b2; text-align: left; overflow-wrap: anywhere; }
tr { break-inside: avoid; }
"""


def page_of(markdown: str) -> str:
    """The text as a page that stands alone: no script, nothing to load. Its title is the first heading."""
    title = next((line[2:].strip() for line in markdown.splitlines() if line.startswith("# ")), "Turnwise")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def print_pdf(source: Path, target: Path, chromium: str) -> None:
    """Print `source` to `target`. Raises CalledProcessError or TimeoutExpired where Chromium fails."""
    with tempfile.TemporaryDirectory(prefix="turnwise-print-") as folder:
        page = Path(folder, "page.html")
        page.write_text(page_of(source.read_text(encoding="utf-8")), encoding="utf-8")
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={folder}/profile", "--no-pdf-header-footer",
            f"--print-to-pdf={target.absolute()}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL)


def main(argv: list[str] | None = None) -> int:
    """Print, and say how large it became."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.print_pdf", description="Print a page of docs/.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(argv)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("print_pdf: chromium is not on the PATH", file=sys.stderr)
        return 1
    print_pdf(options.source, options.target, chromium)
    print(f"{options.target}: {options.target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
