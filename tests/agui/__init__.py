"""The official client of AG-UI at the door of AG-UI."""
