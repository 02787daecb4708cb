"""What a run is asked for: flags, profiles, pacing, arrivals, prompts."""
