"""Grafana's dashboards: written as Python values and kept beside them as the JSON that Grafana provisions."""
