"""The `shiftbench` command: parses, calls the library, prints."""
