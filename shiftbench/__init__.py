"""Measure how much the predictions of an image model change under small shifts.

    import shiftbench

    result = shiftbench.evaluate(model, images, labels, attack="crop", max_shift=6)
    result.adversarial_accuracy(3)

Names are imported on first use, because importing torch takes seconds.
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
    from shiftbench.metrics.consistency import Consistency
    from shiftbench.models import load_model
    from shiftbench.records.compare import compare
    from shiftbench.records.result import Result, load_record, load_records
    from shiftbench.running.job import Settings
    from shiftbench.running.runner import run
    from shiftbench.running.verify import verify
    from shiftbench.shifts import ATTACKS, SHIFTS, Attack
    from shiftbench.statistics import PairedComparison, Score, compare_paired, mcnemar, wilson
    from shiftbench.training import train

__version__ = "0.1.0"

__all__ = [
    "ATTACKS",
    "SHIFTS",
    "Attack",
    "Audit",
    "Consistency",
    "Evaluation",
    "Grid",
    "Offset",
    "PairedComparison",
    "RepairTrial",
    "Result",
    "Score",
    "Settings",
    "ShiftbenchError",
    "audit",
    "compare",
    "compare_paired",
    "evaluate",
    "load_model",
    "load_record",
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
    "Audit": "auditing.report",
    "audit": "auditing.layers",
    "Consistency": "metrics.consistency",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "Grid": "grid",
    "Offset": "grid",
    "load_model": "models",
    "Result": "records.result",
    "compare": "records.compare",
    "load_record": "records.result",
    "load_records": "records.result",
    "run": "running.runner",
    "Settings": "running.job",
    "verify": "running.verify",
    "RepairTrial": "auditing.trials",
    "repair": "auditing.trials",
    "SHIFTS": "shifts",
    "ShiftbenchError": "errors",
    "PairedComparison": "statistics",
    "Score": "statistics",
    "compare_paired": "statistics",
    "mcnemar": "statistics",
    "train": "training",
    "wilson": "statistics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'shiftbench' has no attribute {name!r}")
    return getattr(import_module(f"shiftbench.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
