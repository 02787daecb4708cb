"""Words of the project, from its environment."""

import os

GREETING = os.environ["GREETING"]
