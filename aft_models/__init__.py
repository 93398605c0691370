"""XCiT models, baseline and shift-equivariant; remedies for other networks; training.

Importing this package registers every model with timm.
"""

from aft_models.errors import AftModelsError
from aft_models.presets import PRESETS, create_xcit
from aft_models.repair import repair
from aft_models.weights import list_weights, load_weights
from aft_models.weights.authors import load_authors_checkpoint
from aft_models.xcit import XCiT, XCiTConfig

__all__ = [
    "PRESETS",
    "AftModelsError",
    "XCiT",
    "XCiTConfig",
    "create_xcit",
    "list_weights",
    "load_authors_checkpoint",
    "load_weights",
    "repair",
]
