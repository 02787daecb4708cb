"""How the system is deployed: containers, dashboards and rules, and what stands beside it."""
