"""One source of models per file: the name of the file is the prefix of its models' names.

A file has a function `load(spec)`, and `entries()` where it knows what can be named (see
`shiftbench.models.source`). It is imported when it is used: the libraries of models take seconds.
"""
