"""What a run leaves: writing, reading and choosing records."""
