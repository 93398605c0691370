"""Training: recipes, data, the loop, checkpoints and export."""
