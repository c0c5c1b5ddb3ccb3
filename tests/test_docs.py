"""What the documentation says: its code runs, its links lead somewhere, its lists are complete."""

import contextlib
import gc
import io
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# What pages show beside our own package.
OPTIONAL = ("accelerate", "optuna", "pytorch_optimizer", "skorch", "transformers", "wandb")
WITH_CODE = [p for p in PAGES if "```python" in p.read_text()]


SETUP = "<summary>Run this first</summary>"


def blocks(page):
    """The page's blocks as a reader copies them: alone, after the box "Run this first", or after those they name."""
    found = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    setup = [found[0]] if SETUP in page.read_text() else []
    runs = []
    for i, block in enumerate(found):
        said = re.match(r"# continues the (two )?blocks? above\n", block)
        before = found[:i] if said else setup if i else []
        runs.append("\n".join([*before, block]))
    return runs


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")  # Lightning's own, of torch's pytree
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize(
    ("page", "number"),
    [pytest.param(page, i, id=f"{page.relative_to(ROOT)}-{i}") for page in WITH_CODE for i in range(len(blocks(page)))],
)
def test_code_runs(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "docs"}
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(blocks(page)[number], str(page), "exec"), scope)
        except ModuleNotFoundError as missing:
            if missing.name not in OPTIONAL:
                raise
            pytest.skip(f"needs {missing.name}, which the extra dev brings")
    scope.clear()
    if torch.distributed.is_initialized():
        gc.collect()  # a DDP wrapper must not outlive its process group
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), target


def test_the_files_that_the_architecture_page_names_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+\.py)?|[a-z_]+\.py)`", text))
    boxes = set(re.findall(r'class="m"[^>]*>([^<]+)<', (ROOT / "docs" / "pictures" / "layers.svg").read_text()))
    places = [ROOT / "src", ROOT / "src" / "ausam"]
    assert [name for name in sorted(named | boxes) if not any((place / name).exists() for place in places)] == []
