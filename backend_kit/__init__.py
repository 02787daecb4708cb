"""What both services need and no more: settings, authentication, wire shapes, task handling, HTTP frame, KPI."""
