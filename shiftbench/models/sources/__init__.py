"""One source of models per file: the name of the file is the prefix of its models' names.

A file has two functions, `load(spec)` and `entries()` (see `shiftbench.models.source`), and is
imported when it is used: torch and the libraries of models take seconds.
"""
