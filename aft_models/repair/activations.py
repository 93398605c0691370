"""Which modules are activations."""

from __future__ import annotations

from torch import nn

# A function with a kink takes a finer grid than a smooth one to leave as little residue.
SMOOTH = (nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.Softsign)
_NOT_POINTWISE = (
    nn.Softmax,
    nn.Softmax2d,
    nn.LogSoftmax,
    nn.Softmin,
    nn.MultiheadAttention,
    nn.GLU,
)


def is_activation(module: nn.Module) -> bool:
    """Whether a module applies a function to each element by itself.

    >>> is_activation(nn.ReLU()), is_activation(nn.Softmax()), is_activation(nn.Linear(1, 1))
    (True, False, False)
    """
    home = type(module).__module__
    known = home == "torch.nn.modules.activation" or home.startswith("timm.layers.activations")
    return known and not isinstance(module, _NOT_POINTWISE)
