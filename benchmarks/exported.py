"""Exported files against the committed records: every stored prediction of crops up to 1 px.

    python benchmarks/exported.py DIR                     # each model as an exported file
    python benchmarks/exported.py DIR --pytorch           # in PyTorch instead
    python benchmarks/exported.py DIR --models "*lite0*"  # some models

DIR contains imagenet_val_500/val and weights/, as for the suites in results/suites. The records in
results/records were predicted in PyTorch, those in results/camera by exported files.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import shiftbench
from shiftbench.models import load_model
from shiftbench.records.folder import load_record, record_folder
from shiftbench.records.result import Result
from shiftbench.running.suite import RunSpec, read_suite
from shiftbench.running.verify import predict_again

RESULTS = Path(__file__).resolve().parents[1] / "results"
SUITES = {"imagenet": "records", "imagenet-scale2": "camera"}  # suite: folder of its records
MAX_SHIFT = 1  # px


def only_crops(record: Result) -> Result:
    """Return a record whose only request is the crop attack up to MAX_SHIFT."""
    (crops,) = (info for info in record.requests if info.settings.get("attack") == "crop")
    nearest = replace(crops, settings={**crops.settings, "radius": MAX_SHIFT})
    return replace(record, requests=(nearest,))


def compare(spec: RunSpec, records: str, *, pytorch: bool) -> str:
    """Return one line of the table."""
    dataset = spec.load_data()
    model = spec.load_model(dataset)
    record = only_crops(load_record(record_folder(RESULTS / records, spec.shown, dataset.name)))
    difference = ""
    with tempfile.TemporaryDirectory() as folder:
        if not pytorch:
            path = Path(folder) / "model.onnx"
            written = shiftbench.export(model, path, data=dataset)
            difference = f"{written.difference:.1e} of {written.largest:.1f}"
            model = load_model(str(path))
        result = predict_again(record, model, dataset, images=len(dataset), cells=math.inf)
    for problem in result.problems:
        print(f"  {problem}")
    cells, differ = f"{result.cells:,}", len(result.problems)
    return f"| {spec.shown} | {records} | {cells} | {differ} | {difference} |"


def main() -> None:
    """Print a line per record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", nargs="+", default=())
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--pytorch", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | record | predictions compared | differ | largest difference of logits |")
    print("| --- | --- | ---: | ---: | ---: |")
    for suite in arguments.suites:
        file = RESULTS / "suites" / f"{suite}.yaml"
        for spec in read_suite(file, root=arguments.data, models=arguments.models):
            print(compare(spec, SUITES[suite], pytorch=arguments.pytorch), flush=True)


if __name__ == "__main__":
    main()
