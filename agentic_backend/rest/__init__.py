"""The REST routes beside the live door: sessions, agents, attachments, export, preferences, measurements, the page."""
