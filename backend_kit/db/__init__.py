"""Postgres, as both services use it: timed pools, migrations, and what an error means."""
