"""The one-command start on one machine: embedded Postgres, the mock model and the services as child processes."""
