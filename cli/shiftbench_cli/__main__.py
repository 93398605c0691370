"""`python -m shiftbench_cli`, which is what torchrun starts."""

from shiftbench_cli.main import main

main()
