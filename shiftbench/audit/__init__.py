"""What is measured: arrays in, arrays out, no files."""
