"""Distils a recording of exchanges with LangGraph's dev server to what the comparison needs.

    python -m tests.langgraph.distil FILE

writes `recorded.json` beside this file: methods, paths, statuses, keys and types, no values.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.langgraph.compare import Exchange, exchange_of

RECORDED = Path(__file__).with_name("recorded.json")
_REQUEST = re.compile(r"(GET|POST|PUT|PATCH|DELETE) (/\S*) \{")
_RESPONSE = re.compile(r"   (\d{3}) (\{.*\})$")


def exchanges(text: str) -> Iterator[Exchange]:
    """The exchanges of a recording."""
    for part in text.split("\n## "):
        lines = part.removeprefix("## ").splitlines()
        requests = [match for line in lines if (match := _REQUEST.match(line))]
        answers = [(number, match) for number, line in enumerate(lines) if (match := _RESPONSE.match(line))]
        if not requests or not answers:
            continue
        number, answer = answers[0]
        body = [lines[number + 1].removeprefix("   <- ")]
        for line in lines[number + 2 :]:
            if not line.startswith("      "):
                break
            body.append(line.removeprefix("      "))
        headers = ast.literal_eval(answer[2])
        yield exchange_of(lines[0], requests[0][1], requests[0][2], int(answer[1]), headers, "\n".join(body))


def main() -> int:
    """Writes the file; the exit code."""
    told = [one.as_json() for one in exchanges(Path(sys.argv[1]).read_text())]
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in told) + "\n]\n")
    print(f"{len(told)} exchanges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
