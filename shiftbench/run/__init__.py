"""A run: job, runner, store, engine, processes. Files live here, mathematics does not.

`shiftbench.run(model, data, settings, output)` is `shiftbench.run.runner.run`.
"""

from shiftbench.rooms import make_callable

make_callable(__name__, home=f"{__name__}.runner")
