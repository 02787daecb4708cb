"""What makes several instances one service."""
