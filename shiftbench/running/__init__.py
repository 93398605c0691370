"""A run: job, predictions, runner, shards, verification."""
