"""The live door: sockets and server-sent events, frames in, events out, in both protocols."""
