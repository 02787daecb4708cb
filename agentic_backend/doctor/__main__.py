"""`python -m agentic_backend.doctor`: what the service needs, examined from here, as one line of JSON on stdout.

Exit codes: 0 whatever was found, 2 the configuration cannot be used, said on stderr in one line. It reads the
configuration of the service (CONFIG_FILE, ENV_FILE), changes nothing and may run beside it.
"""

from agentic_backend.doctor.checks import checks_of
from agentic_backend.settings import AgenticSettings
from backend_kit.doctor.checks import examine_and_end
from backend_kit.settings import load_or_exit

if __name__ == "__main__":
    examine_and_end(checks_of(load_or_exit(AgenticSettings)))
