"""Which layers of a model break shift-equivariance, why, and what remedies would change.

>>> import shiftbench
>>> audit = shiftbench.audit("xcit_pico_6_p8.scenes", images=2)
>>> audit.breakers()[0].cause
'sub-sampling'
"""

import sys
from types import ModuleType
from typing import Any

from shiftbench.audit.layers import audit
from shiftbench.audit.report import Audit, LayerReport

__all__ = ["Audit", "LayerReport", "audit"]


class _CallableModule(ModuleType):
    """Makes `shiftbench.audit(...)` the function, and `shiftbench.audit.causes` its neighbor."""

    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
