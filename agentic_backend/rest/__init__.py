"""The REST routes: sessions, agents, attachments, export, preferences, measurements, the page."""
