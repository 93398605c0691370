"""One source of models per file: every file of this folder is imported.

Libraries are imported where they are used, so that listing names does not wait for torch.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
