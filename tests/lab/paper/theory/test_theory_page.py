"""docs/results/theory.md says what theory.json beside it holds; and diagnostics need nothing but torch and numpy."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "results" / "theory.md").read_text()
FOUND = json.loads((DOCS / "results" / "theory.json").read_text())
CIFAR10 = json.loads((DOCS / "results" / "theory-cifar10.json").read_text())


def kind(row):
    return row["run"].rsplit(" ", 1)[0]


def mean(rows, value, **where):
    """Mean over the seeds of what a function picks out of the rows that fit."""
    result = [value(r) for r in rows if all((kind(r) if k == "run" else r[k]) == v for k, v in where.items())]
    assert len(result) == 3
    return fmean(result)


def cells(beginning):
    """The cells of the table row that begins so, as numbers."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {beginning} |")]
    texts = [c.strip(" *") for c in row.split("|")[2:-1]]
    return [float(re.match(r"-?[\d.]+", t)[0]) for t in texts]


@pytest.mark.parametrize(
    ("beginning", "value"),
    [
        ("Spearman of DLP with the norm", lambda r: r["norm"]["spearman"]),
        ("Spearman of DLP with the projection", lambda r: r["projection"]["spearman"]),
        ("mean DLP / rho divided by the mean norm", lambda r: r["norm"]["ratio"]),
        ("mean of the samples' abs(cos)", lambda r: r["cosine"]),
    ],
)
def test_lemma1(beginning, value):
    rows = FOUND["lemma1"]["over_training"]
    expected = [mean(rows, value, run="SAM", epoch=e) for e in (0, 2, 8, 22, 60)]
    assert cells(beginning) == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize(
    ("beginning", "run"),
    [
        ("SAM, 20 % wrong labels", "SAM"),
        ("AUSAM-0.5, 20 % wrong labels", "AUSAM-0.5"),
        ("SAM, clean labels", "SAM clean"),
    ],
)
def test_averages(beginning, run):
    rows = FOUND["lemma1"]["averages"]
    expected = [mean(rows, lambda r, k=k: r[k]["spearman"], run=run, epoch=60) for k in ("last", "mean", "ema")]
    assert cells(beginning) == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize(
    ("beginning", "run", "epoch", "digits"),
    [
        ("SAM, 20 % wrong labels, epoch 1", "SAM", 1, 0.0005),
        ("SAM, 20 % wrong labels, epoch 22", "SAM", 22, 0.0005),
        ("SAM, 20 % wrong labels, epoch 60", "SAM", 60, 0.0005),
        ("AUSAM-0.5, 20 % wrong labels, epoch 60", "AUSAM-0.5", 60, 0.0005),
        ("SAM, clean labels, epoch 22", "SAM clean", 22, 0.0005),
        ("SAM, clean labels, epoch 60", "SAM clean", 60, 0.00005),
    ],
)
def test_theorem1(beginning, run, epoch, digits):
    rows = FOUND["theorem1"]["over_training"]
    result = [
        mean(rows, lambda r: r["difference"], run=run, epoch=epoch, policy=p)
        for p in ("Random", "AUSampling", "TopLoss")
    ]
    table = PAGE[PAGE.index("| `abs(PTF - PTS)`") :].split("\n\n")[0]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {beginning} |")]
    assert [float(c.strip(" *")) for c in line.split("|")[2:-1]] == pytest.approx(result, abs=digits * 1.02)


def test_the_bounds_hold_or_fail_as_the_page_says():
    first = FOUND["theorem1"]["over_training"]
    assert sum(r["batches"] for r in first) == 4320
    assert all(r["corrected_fails"] == 0 for r in first)
    assert all(r["paper_fails"] == 0 for r in first if kind(r) != "SAM clean")
    assert all(
        r["paper_fails"] == 1 for r in first if kind(r) == "SAM clean" and r["policy"] == "TopLoss" and r["epoch"] > 20
    )
    assert all(r["corrected_holds"] == 1 for r in FOUND["theorem4"]["over_training"])
    assert all(r["holds"] is (True if r["applies"] else None) for r in FOUND["theorem2"]["runs"])
    assert len(FOUND["theorem3"]["problems"]) == 48
    assert all(r["holds"] and r["corrected_holds"] for r in FOUND["theorem3"]["problems"])
    assert not FOUND["theorem3"]["counterexample"][-1]["holds"]


BIASES = [("SAM", 1), ("SAM", 8), ("SAM", 60), ("AUSAM-0.5", 8), ("AUSAM-0.5", 60), ("SAM clean", 1), ("SAM clean", 60)]


@pytest.mark.parametrize(("run", "epoch"), BIASES)
def test_theorem4(run, epoch):
    rows = FOUND["theorem4"]["over_training"]
    table = PAGE[PAGE.index("| `abs(E g_kept - g) / abs(g)`") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == len(BIASES)
    line = table[BIASES.index((run, epoch))]
    assert f"epoch {epoch} " in line
    written = [float(re.match(r"[\d.]+", c.strip(" *"))[0]) for c in line.split("|")[2:-1]]
    result = [
        100 * mean(rows, lambda r: r["relative"], run=run, epoch=epoch, policy=p)
        for p in ("Random", "AUSampling", "TopLoss", "unbiased")
    ]
    assert written == pytest.approx(result, abs=0.51)


@pytest.mark.parametrize("run", ["SGD", "SAM", "AUSAM-0.5", "SAM+Random"])
def test_flatness(run):
    rows = FOUND["flatness"]["runs"]
    accuracy, eigenvalue, trace, worst, grouped = cells(run)
    assert accuracy == pytest.approx(100 * mean(rows, lambda r: r["accuracy"], run=run), abs=0.051)
    assert eigenvalue == pytest.approx(mean(rows, lambda r: r["eigenvalues"]["values"][0], run=run), abs=0.051)
    assert trace == pytest.approx(mean(rows, lambda r: r["trace"]["value"], run=run), abs=0.51)
    assert worst == pytest.approx(mean(rows, lambda r: r["sharpness"]["worst"][2], run=run), abs=0.00051)
    assert grouped == pytest.approx(mean(rows, lambda r: r["m_sharpness"]["worst"][2], run=run), abs=0.00051)


def test_where_ausam_comes_to_rest():
    rows = FOUND["flatness"]["runs"]
    chosen, every, sam = map(
        float, re.search(r"selection is small\s+\((.*?)\).*?is\s+not\s+\((.*?); SAM: (.*?)\)", PAGE, re.DOTALL).groups()
    )
    assert chosen == pytest.approx(mean(rows, lambda r: r["chosen_gradient_norm"], run="AUSAM-0.5"), abs=0.0051)
    assert every == pytest.approx(mean(rows, lambda r: r["gradient_norm"], run="AUSAM-0.5"), abs=0.0051)
    assert sam == pytest.approx(mean(rows, lambda r: r["gradient_norm"], run="SAM"), abs=0.0051)


def of(run, part, epoch):
    (row,) = [r for r in CIFAR10["runs"][run][part] if r["epoch"] == epoch]
    return {p["policy"]: p for p in row["policies"]}


CIFAR10_ROWS = {"SAM": "SAM", "AUSAM-0.5": "AUSAM-0.5", "SAM clean": "SAM, clean labels"}


@pytest.mark.parametrize("run", CIFAR10_ROWS)
def test_theorem1_on_cifar10(run):
    rows = CIFAR10["runs"][run]["theorem1"]
    summaries = {
        p: [of(run, "theorem1", r["epoch"])[p]["summary"] for r in rows] for p in ("Random", "AUSampling", "TopLoss")
    }
    name = {"SAM clean": "SAM, clean labels"}.get(run, f"{run}, 20 % wrong labels")
    expected = [fmean(s["difference"] for s in of) for of in summaries.values()]
    assert cells(f"CIFAR-10, {name}") == pytest.approx(expected, abs=0.00051)
    assert all(s["paper_fails"] == s["corrected_fails"] == 0 for of in summaries.values() for s in of)


def test_the_number_of_cases_on_cifar10():
    every = [
        p["summary"]["batches"] for run in CIFAR10["runs"].values() for r in run["theorem1"] for p in r["policies"]
    ]
    assert f"all {sum(every)} cases" in PAGE


@pytest.mark.parametrize(("run", "epoch"), [(r, e) for r in CIFAR10_ROWS for e in ((4 if "clean" in r else 1), 40)])
def test_theorem4_on_cifar10(run, epoch):
    result = of(run, "theorem4", epoch)
    expected = [100 * result[p]["relative"] for p in ("Random", "AUSampling", "TopLoss", "unbiased")]
    assert cells(f"CIFAR-10, {CIFAR10_ROWS[run]}, epoch {epoch}") == pytest.approx(expected, abs=0.51)


@pytest.mark.parametrize("run", ["SGD", "SAM", "AUSAM-0.5", "SAM+Random"])
def test_flatness_on_cifar10(run):
    (row,) = [r for r in CIFAR10["flatness"]["runs"] if r["label"] == run]
    accuracy, loss, fitted, memorised, eigenvalue, trace, worst, grouped, adaptive = cells(f"CIFAR-10, {run}")
    assert row["whole"]["rho"][2] == pytest.approx(0.1)
    assert accuracy == pytest.approx(row["test"], abs=0.0051)
    assert loss == pytest.approx(row["whole"]["loss"], abs=0.0051)
    assert fitted == pytest.approx(100 * row["fit"]["accuracy"], abs=0.51)
    assert memorised == pytest.approx(100 * row["fit"]["memorised"], abs=0.51)
    assert eigenvalue == pytest.approx(row["eigenvalues"]["values"][0], abs=0.51)
    assert trace == pytest.approx(row["trace"]["value"], abs=5.1 if trace > 1000 else 0.51)
    assert row["eigenvalues"]["converged"]
    assert worst == pytest.approx(row["whole"]["worst"][2], abs=0.0051)
    assert grouped == pytest.approx(row["groups"]["worst"][2], abs=0.0051)
    assert adaptive == pytest.approx(row["adaptive"]["worst"][2], abs=0.00051)


@pytest.mark.parametrize("run", ["SAM", "AUSAM-0.5", "SAM+Random"])
def test_flatness_at_the_same_loss_on_cifar10(run):
    (row,) = [r for r in CIFAR10["flatness"]["same_loss"] if r["as"] == run]
    epoch, loss, eigenvalue, trace, worst = cells(f"CIFAR-10, SGD with the loss of {run}")
    assert epoch == row["epoch"]
    assert loss == pytest.approx(row["loss"], abs=0.0051)
    assert eigenvalue == pytest.approx(row["eigenvalues"]["values"][0], abs=0.51)
    assert trace == pytest.approx(row["trace"]["value"], abs=0.51)
    assert worst == pytest.approx(row["whole"]["worst"][0], abs=0.0051)


def test_the_sentences_on_cifar10():
    run = CIFAR10["runs"]["AUSAM-0.5"]
    text = " ".join(PAGE.split())
    last, first = run["lemma1"][-1], CIFAR10["runs"]["SAM clean"]["lemma1"][0]
    assert f"a correlation of {last['table']['spearman']:.2f} with the norm" in text
    average = {k: f"{last['average'][k]['spearman']:.2f}" for k in ("mean", "ema", "last")}
    assert f"the mean ({average['mean']}) and the moving average ({average['ema']})" in text
    assert f"the latest one ({average['last']})" in text
    end = CIFAR10["runs"]["SAM clean"]["lemma1"][-1]["projection"]
    assert f"falls from {first['projection']['spearman']:.2f} to {end['spearman']:.2f}" in text
    relative = run["theorem2"]["found"]["relative"]
    low, high = (f"{100 * v:.0f}" for v in (min(relative), max(relative)))
    assert f"off by {low} to {high} % of the current norm, and by {100 * relative[-1]:.0f} % at the end" in text
    assert not run["theorem2"]["found"]["applies"]
    chosen = run["selection"]
    assert f"between {chosen['fewest']} and {chosen['most']} times" in text
    assert f"gap was {chosen['worst_gap']} epochs" in text
    clean, wrong = (g["visits"] for g in chosen["groups"]["label"])
    assert f"visited {wrong / clean:.2f} times as often as correct ones" in text
    for folder, name in (("sgd", "SGD"), ("sam", "SAM"), ("ausam-0.5", "AUSAM-0.5"), ("sam+random", "SAM+Random")):
        assert f"{name} {CIFAR10['accuracy'][f'noisy/runs/{folder}/seed-0']:.2f} %" in text


@pytest.mark.nightly
def test_importing_needs_torch_and_numpy_alone():
    code = (
        "import sys; import torch, numpy, ausam; before = set(sys.modules); import ausam_lab.paper.theory;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new & {'lightning', 'transformers', 'tensorboard', 'scipy', 'sklearn', 'altair', 'pandas'}),"
        "any(m.startswith('ausam_lab') for m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[0] == "[] False"
