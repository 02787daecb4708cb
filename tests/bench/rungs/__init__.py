"""The lower and in-between rungs of `make bench-ladder`: servers and an agent that leave out what a rung adds."""
