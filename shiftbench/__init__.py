"""How much does a classifier's answer depend on where the camera stood?

    import shiftbench

    result = shiftbench.evaluate(model, images, labels, attack="crop", max_shift=6)
    result.adversarial_accuracy(3)

Names are loaded on first use, so that a command that needs no tensors does not wait for torch.
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
    from shiftbench.grid import Grid, Offset
    from shiftbench.metrics.consistency import CONSISTENCIES, Consistency
    from shiftbench.metrics.search import Trace, adversarial_accuracy
    from shiftbench.models import load_model
    from shiftbench.records.choose import load_records
    from shiftbench.running.job import Settings
    from shiftbench.running.remeasure import verify
    from shiftbench.running.runner import run
    from shiftbench.shifts import ATTACKS, SHIFTS, Attack
    from shiftbench.statistics import PairedComparison, Score, compare_paired, mcnemar, wilson
    from shiftbench.training import train

__version__ = "0.1.0"

__all__ = [
    "ATTACKS",
    "CONSISTENCIES",
    "SHIFTS",
    "Attack",
    "Audit",
    "Consistency",
    "Evaluation",
    "Grid",
    "Offset",
    "PairedComparison",
    "RepairTrial",
    "Score",
    "Settings",
    "ShiftbenchError",
    "Trace",
    "adversarial_accuracy",
    "audit",
    "compare_paired",
    "evaluate",
    "load_model",
    "load_records",
    "mcnemar",
    "repair",
    "run",
    "train",
    "verify",
    "wilson",
]

_HOME = {
    "ATTACKS": "shifts",
    "Attack": "shifts",
    "Audit": "audit.report",
    "audit": "audit.layers",
    "CONSISTENCIES": "metrics.consistency",
    "Consistency": "metrics.consistency",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "Grid": "grid",
    "Offset": "grid",
    "load_model": "models",
    "load_records": "records.choose",
    "run": "run.runner",
    "Settings": "run.job",
    "verify": "run.remeasure",
    "RepairTrial": "audit.trials",
    "repair": "audit.trials",
    "SHIFTS": "shifts",
    "ShiftbenchError": "errors",
    "PairedComparison": "statistics",
    "Score": "statistics",
    "compare_paired": "statistics",
    "mcnemar": "statistics",
    "train": "training",
    "wilson": "statistics",
    "Trace": "metrics.search",
    "adversarial_accuracy": "metrics.search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shiftbench' has no attribute {name!r}")
    return getattr(import_module(f"shiftbench.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
