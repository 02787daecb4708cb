"""Grafana's dashboards: written here as values, kept beside as the JSON that Grafana provisions."""
