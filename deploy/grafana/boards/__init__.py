"""The dashboards, one module each: which panels, in which order, of which queries."""

from deploy.grafana.boards.bench import bench
from deploy.grafana.boards.knowledge_flow import knowledge_flow
from deploy.grafana.boards.model import model
from deploy.grafana.boards.process import process
from deploy.grafana.boards.saturation import saturation
from deploy.grafana.boards.service_level import service_level
from deploy.grafana.boards.time_spent import time_spent
from deploy.grafana.model import Dashboard


def all_dashboards() -> list[Dashboard]:
    """Every dashboard; the first is the one to begin with."""
    return [service_level(), time_spent(), saturation(), knowledge_flow(), model(), process(), bench()]
