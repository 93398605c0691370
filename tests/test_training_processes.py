"""Two processes train as one does, at the same global batch."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import dataclasses, sys
from pathlib import Path
import torch
from torch import distributed
from aft_models.training.processes import Processes
from training_runs import RECIPE, TinyNet, run

if "RANK" in __import__("os").environ:
    distributed.init_process_group("gloo")
torch.manual_seed(7)
model = TinyNet(batch_norm=False)
recipe = dataclasses.replace(RECIPE, ema_decay=0.0)
run(Path(sys.argv[1]), recipe, model=model, processes=Processes.current())
if distributed.is_initialized():
    distributed.destroy_process_group()
"""


def test_two_processes_equal_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    here = Path(__file__).parent
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    losses = []
    for count, words in ((1, []), (2, launch)):
        folder = tmp_path / str(count)
        subprocess.run(
            [sys.executable, *words, str(script), str(folder)],
            cwd=here,
            env={**_environment(), "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            timeout=240,
        )
        lines = (folder / "log.csv").read_text().splitlines()
        column = lines[0].split(",").index("loss")
        losses.append([float(line.split(",")[column]) for line in lines[1:]])
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def _environment() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if key != "RANK"}
