"""Models of `part_cases` as `FILE.py:FUNCTION`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location(
    "part_cases_of_networks", Path(__file__).parent / "part_cases.py"
)
assert _spec is not None
assert _spec.loader is not None
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)
FACTS = {"input_size": 64, "mean": 0.0, "std": 1.0, "interpolation": "nearest", "fill": 96}

FINER = {**FACTS, "interpolation": "bilinear"}  # the filter of views of scale 2


def detector() -> Any:
    return cases.oracle_detector, {**FACTS, "class_names": cases.CLASSES}


def classifier() -> Any:
    return (lambda images: cases.oracle_classifier(images)[:, :2]), FACTS


def finer() -> Any:
    return cases.soft_detector, {**FINER, "class_names": cases.CLASSES}


def blind_finer() -> Any:
    return cases.blind_detector, {**FINER, "class_names": cases.CLASSES}


def centered() -> Any:
    return cases.oracle_detector, {**FACTS, "class_names": cases.CLASSES, "centered": True}


def unnamed() -> Any:
    return cases.oracle_detector, FACTS


def blind() -> Any:
    return cases.blind_detector, {**FACTS, "class_names": cases.CLASSES}


def segmenter() -> Any:
    return cases.oracle_segmenter, {**FACTS, "class_names": ("gray", *cases.CLASSES)}
