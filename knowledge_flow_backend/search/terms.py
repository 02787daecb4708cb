"""What of a text is looked for as words, where the engine's own analysis does not take names of code apart.

The same as the function `search_words` in Postgres: both engines find a name by its parts, its tails and whole.
"""

import re
import string
from typing import Final

_BLANKS: Final = str.maketrans(dict.fromkeys(string.punctuation, " "))
# At most 8 parts each: a line of dots costs no more than prose.
_NAME: Final = re.compile(r"[0-9A-Za-z_]+(?:\.[0-9A-Za-z_]+){1,7}|[0-9A-Za-z]*_[0-9A-Za-z_]*")
_MAX_NAME: Final = 200


def spelled(text: str) -> str:
    """The text without punctuation, and the names in it: `asyncio.gather()` is `asyncio gather asyncio.gather`."""
    names = {tail for found in _NAME.findall(text) for tail in _tails(found)}
    return f"{text.translate(_BLANKS)} {' '.join(sorted(names))}".rstrip()


def _tails(name: str) -> list[str]:
    parts = name.split(".")
    tails = (".".join(parts[start:]) for start in range(len(parts)))
    return [tail for tail in tails if ("." in tail or "_" in tail) and tail.strip("_.") and len(tail) <= _MAX_NAME]
