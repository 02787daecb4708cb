"""Programs that `make bench-turn` measures beside ours: same asks, same tables, each in its own way."""
