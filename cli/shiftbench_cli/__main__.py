"""`python -m shiftbench_cli`."""

from shiftbench_cli.main import main

main()
