"""How the agentic service examines what its configuration needs: its part of `turnwise doctor`."""
