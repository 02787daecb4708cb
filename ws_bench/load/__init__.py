"""The load: clients, their conversations, worker processes, and what monitors the run meanwhile."""
