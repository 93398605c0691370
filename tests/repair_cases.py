"""Networks and images for the tests of repair."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Block with a branch and a shortcut that both sub-sample, an activation, a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.branch = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4)
        self.shortcut = nn.Conv2d(4, 4, 1, stride=2)
        self.act = nn.GELU()
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = self.act(self.branch(x) + self.shortcut(x))
        return self.head(self.pool(x).mean((2, 3)))


def photo(side: int = 16, count: int = 2) -> Tensor:
    """Return images of white noise, in float64."""
    return torch.randn(count, 3, side, side, dtype=torch.float64)


def calibrated(model: nn.Module, x: Tensor) -> nn.Module:
    """Convert to float64, set batch norms to the statistics of ``x``, enable all branches."""
    model = model.double()
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gamma"):  # layer scale is near zero initially
                parameter.uniform_(0.5, 1)
            elif "mlp.fc" in name and parameter.ndim > 1:  # a narrow GELU is nearly linear
                nn.init.kaiming_normal_(parameter)
        for norm in norms:  # the last norm of a residual branch is often zero initially
            norm.weight.uniform_(0.5, 1)
            norm.momentum = None  # statistics of exactly these batches
            norm.reset_running_stats()
        model.train()(x)
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()
