"""Sockets and REST of conversations: frames in, events out, both protocols."""
