"""The load: clients, conversations, workers, and the watch of the server meanwhile."""
