"""The wheel as a new user has it."""
