"""The code that several packages share: settings, authentication, wire formats, tasks, HTTP, databases, KPI."""
