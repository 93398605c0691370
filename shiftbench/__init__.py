"""Measure, explain and repair the shift sensitivity of image models.

    import shiftbench

    result = shiftbench.evaluate(model, images, labels, attack="crop", max_shift=6)
    result.adversarial_accuracy(3)

Names are loaded on first use: a command that needs no tensors does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shiftbench.auditing.layers import audit
    from shiftbench.auditing.report import Audit
    from shiftbench.auditing.trials import RepairTrial, repair
    from shiftbench.errors import ShiftbenchError
    from shiftbench.evaluation import Evaluation, evaluate
    from shiftbench.exporting import ExportResult, export
    from shiftbench.grid import Grid, Offset
    from shiftbench.models import load_model
    from shiftbench.records.compare import compare
    from shiftbench.records.folder import load_record, load_records
    from shiftbench.records.result import Result
    from shiftbench.running.job import AttackSpec, Settings
    from shiftbench.running.runner import run
    from shiftbench.running.suite import RunSpec, read_suite
    from shiftbench.running.verify import verify
    from shiftbench.shifts import ATTACKS, SHIFTS, Attack
    from shiftbench.statistics import PairedComparison, Score, compare_paired, mcnemar, wilson
    from shiftbench.training import train

__version__ = "0.2.0"

__all__ = [
    "ATTACKS",
    "SHIFTS",
    "Attack",
    "AttackSpec",
    "Audit",
    "Evaluation",
    "ExportResult",
    "Grid",
    "Offset",
    "PairedComparison",
    "RepairTrial",
    "Result",
    "RunSpec",
    "Score",
    "Settings",
    "ShiftbenchError",
    "audit",
    "compare",
    "compare_paired",
    "evaluate",
    "export",
    "load_model",
    "load_record",
    "load_records",
    "mcnemar",
    "read_suite",
    "repair",
    "run",
    "train",
    "verify",
    "wilson",
]

_MODULES = {  # module -> its public names
    "auditing.layers": ("audit",),
    "auditing.report": ("Audit",),
    "auditing.trials": ("RepairTrial", "repair"),
    "errors": ("ShiftbenchError",),
    "evaluation": ("Evaluation", "evaluate"),
    "exporting": ("ExportResult", "export"),
    "grid": ("Grid", "Offset"),
    "models": ("load_model",),
    "records.compare": ("compare",),
    "records.folder": ("load_record", "load_records"),
    "records.result": ("Result",),
    "running.job": ("AttackSpec", "Settings"),
    "running.runner": ("run",),
    "running.suite": ("RunSpec", "read_suite"),
    "running.verify": ("verify",),
    "shifts": ("ATTACKS", "SHIFTS", "Attack"),
    "statistics": ("PairedComparison", "Score", "compare_paired", "mcnemar", "wilson"),
    "training": ("train",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"shiftbench.{module}"), name)
    raise AttributeError(f"module 'shiftbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
