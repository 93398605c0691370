"""CPU time of a table, a page and a figure against the number of records.

python benchmarks/leaderboard.py [20 200 1000]

The records are those of three networks on one data set. In each copy, predictions are permuted
among the images of a class, so that every copy has scores and images to compare.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
BASES = sorted((ROOT / "results" / "records").glob("xcit_pico_6_p8*--scenes"))
COMMANDS = {
    "CSV": ("leaderboard", "-o", "board.csv"),
    "HTML": ("leaderboard", "-o", "board.html"),
    "plot": ("plot", "-o", "curves.png"),
}


def copy_record(base: Path, folder: Path, number: int) -> None:
    """Write a copy of a record with the same scores on other images."""
    content = json.loads((base / "record.json").read_text("utf-8"))
    content["model"]["name"] += f"-{number:04d}"
    samples = pd.read_parquet(base / "samples.parquet")
    generator = np.random.default_rng(number)
    order = np.arange(len(samples))
    for rows in samples.groupby("label").indices.values():
        order[rows] = generator.permutation(rows)
    fixed = samples[["key", "label"]]
    dealt = samples.drop(columns=["key", "label"]).iloc[order].reset_index(drop=True)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(content), "utf-8")
    fixed.join(dealt).to_parquet(folder / "samples.parquet", index=False)


def cpu_seconds(words: tuple[str, ...], place: Path) -> float:
    """Return user and system time of a command over the records of a folder, start-up included."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "shiftbench_cli", words[0], "runs", *words[1:]]
    subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line per number of records."""
    counts = [int(word) for word in sys.argv[1:]] or [20, 200, 1000]
    print("| records | " + " | ".join(f"{name}, CPU s" for name in COMMANDS) + " |")
    print("| ---: |" + " ---: |" * len(COMMANDS))
    with tempfile.TemporaryDirectory() as folder:
        place, made = Path(folder), 0
        for count in sorted(counts):
            for number in range(made, count):
                copy_record(BASES[number % len(BASES)], place / "runs" / f"{number:04d}", number)
            made = count
            seconds = [cpu_seconds(words, place) for words in COMMANDS.values()]
            print(f"| {count:,} | " + " | ".join(f"{s:.1f}" for s in seconds) + " |")


if __name__ == "__main__":
    main()
