"""The files for autoscalers: they read what the rules record, want what the rules mean, and agree with each other."""

import re
from typing import Any

import yaml

from agentic_backend.verdict import CAUSES
from tests.deploy.watched import rules
from tests.support.processes import ROOT

PLACE = ROOT / "deploy/autoscaling"
RECORD = "job:app_turns_capacity_ratio:to_scale"
OF_THE_SERVICE = {"loop_cpu", "admission", "starved"}
"""The causes that further instances mend."""


def file_of(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((PLACE / name).read_text())
    return read


def recorded(name: str) -> str:
    (expr,) = [rule["expr"] for rule in rules() if rule.get("record") == name]
    return str(expr)


def kept_below() -> float:
    """What the rule says at most while the service is not the bound."""
    (bound,) = re.findall(r"clamp_max\(job:app_turns_capacity_ratio:mean_2m, ([\d.]+)\)", recorded(RECORD))
    return float(bound)


def test_the_target_of_both_is_what_the_rule_says_at_most_where_more_would_not_help() -> None:
    (trigger,) = file_of("keda.yaml")["spec"]["triggers"]
    (metric,) = file_of("hpa.yaml")["spec"]["metrics"]
    assert trigger["metricType"] == "Value"
    assert trigger["metadata"]["query"] == f'{RECORD}{{job="agentic"}}'
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert float(trigger["metadata"]["threshold"]) == kept_below()
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {"job": "agentic"}}
    assert metric["external"]["target"] == {"type": "Value", "value": f"{kept_below() * 1000:.0f}m"}
    scaling = (ROOT / "docs/operations.md").read_text().partition("### Scaling\n")[2].partition("\n### ")[0]
    assert f"at most {kept_below()}." in scaling
    assert f"`to_scale` / {kept_below()}." in scaling
    assert f"`{kept_below() * 1000:.0f}m`" in scaling


def test_what_the_hpa_reads_is_what_the_adapter_makes_of_the_rule() -> None:
    (rule,) = file_of("prometheus-adapter.yaml")["rules"]["external"]
    (metric,) = file_of("hpa.yaml")["spec"]["metrics"]
    assert rule["seriesQuery"] == f'{{__name__="{RECORD}"}}'
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]
    assert rule["resources"] == {"namespaced": False}


def test_both_have_the_same_bounds_and_the_same_patience() -> None:
    keda, hpa = file_of("keda.yaml")["spec"], file_of("hpa.yaml")["spec"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"]


def test_more_is_asked_for_only_by_causes_that_are_the_services_own() -> None:
    named = re.findall(r'cause=~"([^"]*)"', recorded("job:app_bound_by:by_the_service_2m"))
    assert [set(causes.split("|")) for causes in named] == [OF_THE_SERVICE]
    assert set(CAUSES) >= OF_THE_SERVICE
