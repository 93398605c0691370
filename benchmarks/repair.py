"""Cost of each remedy: forward passes and train steps over those of the original model.

    python benchmarks/repair.py                          # ResNet-50 and EfficientNet-Lite0
    python benchmarks/repair.py --models resnet18 --remedies blurpool circular+aps

Every figure is a ratio within this process, of the CPU time of one thread: a candidate runs
between two runs of the original, and the median over the rounds counts. A remedy that does not fit
a model is left out.
"""

from __future__ import annotations

import argparse
import sys

import timm
import torch
import torch.nn.functional as F
from models import CLOCKS, machine, print_table, ratios
from torch import nn

from aft_models import AftModelsError, repair
from aft_models.remedies import REMEDIES
from aft_models.remedies.repair import reports

MODELS = ["resnet50", "tf_efficientnet_lite0"]
PAIRS = [f"circular+{r.name}" for r in REMEDIES.values() if r.group == "sampling"]
AIMS = {"blurpool": "<= 1.5", "circular+blurpool": "<= 1.5", "circular+aps": "<= 2.5", "af": "<= 5"}


def rows(name: str, args: argparse.Namespace) -> list[list[str]]:
    """Measure one row per remedy."""
    original: nn.Module = timm.create_model(name)
    x = torch.randn(args.batch, 3, args.side, args.side)
    labels = torch.randint(0, 1000, (args.batch,))
    models = {"original": original}
    for remedy in args.remedies:
        try:
            models[remedy] = repair(original, remedy)
        except AftModelsError as error:
            print(f"{name}+{remedy}: {error}", file=sys.stderr)

    margins = {m: sum(report.margin for report in reports(m)) for m in models.values()}
    wide = {model: F.pad(x, (margin,) * 4) for model, margin in margins.items()}

    @torch.inference_mode()
    def forward(model: nn.Module) -> None:
        model.eval()(wide[model])

    def train_step(model: nn.Module) -> None:
        model.train().zero_grad()
        F.cross_entropy(model(wide[model]), labels).backward()

    measured = [
        ratios(
            {key: lambda m=model, f=what: f(m) for key, model in models.items()},
            rounds=args.rounds,
            clock=CLOCKS["cpu"],
        )
        for what in (forward, train_step)
    ]
    return [
        [name, remedy, *(f"{result[remedy][1]:.2f}" for result in measured), AIMS.get(remedy, "")]
        for remedy in list(models)[1:]
    ]


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS, help="names of timm")
    parser.add_argument("--remedies", nargs="*", default=[*REMEDIES, *PAIRS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=224, help="pixels")
    args = parser.parse_args()
    args.clock = "cpu"
    torch.set_num_threads(1)
    print(f"{machine(args)}, batches of {args.batch} images of {args.side} px\n")
    for name in args.models:
        print_table(["model", "remedy", "forward", "train step", "aim"], rows(name, args))


if __name__ == "__main__":
    main()
