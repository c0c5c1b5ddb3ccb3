"""Run the tutorials of docs/tutorials and keep what they print and draw: ``make notebooks``.

Only text and drawings stay. A cell's execution times and a kernel's name would change with every run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
KEPT = ("image/svg+xml", "text/plain")


def run(path: Path) -> None:
    """Execute one notebook and write it back with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    notebook.metadata = {"language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = merged_streams(tidy(output) for output in cell.outputs if output.get("name") != "stderr")
    nbformat.write(notebook, path)


def tidy(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The output with the first form that a page shows, and no more."""
    if "data" in output:
        form = next(form for form in KEPT if form in output.data)
        output.data, output.metadata = {form: output.data[form]}, {}
    if "execution_count" in output:
        output.execution_count = None
    return output


def merged_streams(outputs: Iterable[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """What was printed in several pieces, as one: where a kernel cuts it depends on the time it takes."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    for tutorial in sorted(TUTORIALS.glob("*.ipynb")):
        run(tutorial)
        sys.stdout.write(f"{tutorial.name}: {tutorial.stat().st_size // 1000} kB\n")
