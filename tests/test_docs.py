"""What the documentation says: its code runs, its links lead somewhere, its lists are complete."""

import contextlib
import doctest
import gc
import inspect
import io
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import ausam
import ausam.audit
import ausam.diagnostics

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# What pages show beside our own package.
OPTIONAL = ("accelerate", "lightning", "optuna", "pytorch_optimizer", "skorch", "transformers")
WITH_CODE = [p for p in PAGES if "```python" in p.read_text()]


SETUP = "<summary>Run this first</summary>"


def blocks(page):
    """The page's blocks as the copy button gives them: alone, or after the box "Run this first"."""
    found = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    setup = found[0] if SETUP in page.read_text() else ""
    return [f"{setup}\n{block}" if i else block for i, block in enumerate(found)]


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


def test_the_first_example_of_the_guide_to_wrong_labels_finds_them():
    scope = {"__name__": "docs"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(blocks(ROOT / "docs" / "wrong-labels.md")[0], scope)
    flagged, wrong = scope["errors"].index, scope["wrong"]
    assert wrong[flagged].float().mean() > 0.9
    assert wrong[flagged].sum() > 0.8 * wrong.sum()


def public(module):
    """The functions and classes of a module, and their public methods."""
    for name in module.__all__:
        made = getattr(module, name)
        if callable(made):
            yield name, made
        if inspect.isclass(made):
            yield from ((f"{name}.{k}", v) for k, v in vars(made).items() if k[0] != "_" and callable(v))


@pytest.mark.parametrize("module", [ausam, ausam.audit, ausam.diagnostics], ids=lambda m: m.__name__)
def test_examples_of_docstrings_run_alone(module):
    """What doctest cannot see, because it runs an example among the names of its module."""
    failed = {}
    for name, made in public(module):
        examples = doctest.DocTestParser().get_examples(made.__doc__ or "")
        finder = doctest.DocTest(examples, {"__name__": "docs"}, name, None, None, None)
        report = io.StringIO()
        if doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(finder, out=report.write).failed:
            failed[name] = report.getvalue()
    assert failed == {}


def executed(code):
    scope = {"__name__": "docs"}
    exec(compile(code, "docs", "exec"), scope)
    return scope


def test_both_columns_of_pytorch_optimizer_train_the_same_weights():
    pytest.importorskip("pytorch_optimizer", reason="needs pytorch_optimizer, which the extra dev brings")
    columns = [code for code in blocks(ROOT / "docs" / "port.md") if "for step in range(10)" in code]
    theirs, ours = (executed(code)["model"] for code in columns)
    assert "pytorch_optimizer.SAM" in columns[0]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_the_method_and_the_policy_of_the_guide_work_together():
    mine = executed("\n".join(blocks(ROOT / "docs" / "adding-a-method.md")[:2]))
    model = torch.nn.Linear(4, 2)
    opt = ausam.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), mine["RandomDirection"](rho=0.1), model)
    sampler = ausam.SelectiveBatchSampler(32, batch_size=8, policy=mine["MiddleLoss"](alpha=0.5), seed=0)
    ausam.check(opt.method, sampler.policy)
    x, y = torch.randn(32, 4), torch.randint(2, (32,))
    for _ in range(2):
        for chosen in sampler:
            i = torch.tensor(chosen)
            sampler.update(opt.backward(lambda x, y: cross_entropy(model(x), y, reduction="none"), x[i], y[i], index=i))
            opt.step()
            opt.zero_grad()
    assert sampler.scores.count.sum() == 32 + 16  # everything in the first epoch, then half


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
