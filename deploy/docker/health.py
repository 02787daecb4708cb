"""`python -I health.py URL`: 0 where URL answers 200 within 4 s. The images have no curl."""

import sys
import urllib.request

_TIMEOUT_S = 4.0


def main(arguments: list[str]) -> int:
    """Ask once; the exit code, and what is wrong on stderr."""
    (url,) = arguments
    # No proxy, whatever the environment says: it asks the container it runs in.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            answer.read()
    except OSError as error:  # HTTPError and URLError are ones
        sys.stderr.write(f"{url}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
