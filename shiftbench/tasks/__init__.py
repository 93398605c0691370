"""Tasks, one file each: which rows an image has, and the class of a row at an offset.

Every file of this folder is imported and registers itself.
"""

from importlib import import_module
from pkgutil import iter_modules

from shiftbench.data.base import Target
from shiftbench.tasks.base import TASKS, Filled, Seen, Task, task_of

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["TASKS", "Filled", "Seen", "Target", "Task", "task_of"]
