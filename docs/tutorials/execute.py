"""Run the tutorials in an empty folder and store their outputs: `make notebooks`.

    python docs/tutorials/execute.py [--check] [NOTEBOOK...]

With --check the files do not change; a cell that fails is an error either way.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 1800  # for a single cell, on a busy machine


def execute(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with new outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place)
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day: they would differ every time
        if "outputs" in cell:  # warnings name folders of this machine
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def main() -> None:
    """Run the given notebooks, by default all."""
    parser = argparse.ArgumentParser(description="Run the tutorials and store their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="do not change the files")
    given = parser.parse_args()
    # `!shiftbench` in a cell is the one of this environment.
    os.environ |= {"NO_COLOR": "1", "COLUMNS": "110"}  # plain tables, as wide as a page
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for path in given.notebooks or sorted(HERE.glob("*.ipynb")):
        notebook = execute(path)
        if not given.check:
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
