"""How the system is started: locally on one command, in containers, with its dashboards."""
