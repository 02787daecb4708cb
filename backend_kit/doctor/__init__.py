"""What `turnwise doctor` asks of every service: findings, the checks that both have, and how they are run.

A service examines itself in a process of its own (`python -m agentic_backend.doctor`), with its own settings, and says
what it found in one line; the command puts the lines together. Nothing is changed, and nothing is kept.
"""
