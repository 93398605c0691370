"""Which layers of a model break shift-equivariance, why, and what remedies would change.

>>> import shiftbench
>>> audit = shiftbench.audit("xcit_pico_6_p8.scenes", images=2)
>>> audit.breakers()[0].cause
'sub-sampling'
"""

from shiftbench.rooms import make_callable

make_callable(__name__, home=f"{__name__}.layers")
