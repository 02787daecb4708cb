"""Servers that stand in for what a deployment buys elsewhere: the fake model, and the command that measures it."""
