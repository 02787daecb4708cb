"""Calls to other services over HTTP: connections with limits, and JSON with deadlines, retries and a breaker."""
