"""Knowledge flow, as the agentic service reaches it."""

from yarl import URL

from agentic_backend.settings import AgenticSettings
from backend_kit.auth.verify import LEEWAY_S
from backend_kit.client.json_client import CallFailed
from backend_kit.doctor.checks import Check
from backend_kit.doctor.clocks import clock_finding
from backend_kit.doctor.findings import Diagnosis
from backend_kit.doctor.http import get, readiness, unreached

_WHAT = "knowledge flow"
_REMEDY = "ai.knowledge_flow_url: start knowledge flow, or name where it is; agents answer without documents until then"


def knowledge_check(settings: AgenticSettings) -> Check:
    """The check of `ai.knowledge_flow_url`."""
    return Check(_WHAT, lambda: _look(URL(settings.ai.knowledge_flow_url) / "ready"), _REMEDY)


async def _look(url: URL) -> list[Diagnosis]:
    try:
        reply = await get(url)
    except CallFailed as failure:
        return [unreached(_WHAT, url, failure, _REMEDY)]
    found = [readiness(_WHAT, url, reply, _REMEDY)]
    if reply.ahead_s is not None:
        harm = f"each service judges tokens by its own clock, with {LEEWAY_S} s of leeway"
        found.append(clock_finding(_WHAT, reply.ahead_s, LEEWAY_S, harm))
    return found
