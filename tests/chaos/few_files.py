"""The agentic service as it is run, in a process that may open 1,024 files, as many systems have it by default."""

import resource
import sys

from agentic_backend.__main__ import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    sys.exit(main())
