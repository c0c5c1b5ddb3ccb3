"""The paper's lemma and theorems, measured on scikit-learn's digits: numbers and pictures of docs/results/theory.md.

    python benchmarks/theory.py            # measure, write docs/results/theory.json, draw docs/results/theory-*.png
    python benchmarks/theory.py --charts   # draw from the numbers that are there (needs altair and vl-convert-python)

1,024 digits of 8x8, 20 % of them with a wrong label or all right ("clean"), and a network of two hidden layers without
BatchNorm or dropout, so that training and measuring see the same function. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Full, Indexed, Plain, Random, Scores, SelectiveBatchSampler, SharpnessAware, TopLoss
from ausam import diagnostics as dg
from ausam_lab.paper import theory

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
N, BATCH, EPOCHS, RHO, LR = 1024, 64, 60, 0.2, 0.1
NOISE = 0.2
SEEDS = (0, 1, 2)
WATCHED = (0, 1, 2, 4, 8, 15, 22, 30, 40, 50, 60)  # epochs that are over when something is measured


# -- the problem ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Digits:
    """The data of one seed: which labels are wrong, and which digits are for testing, depend on it."""

    x: Tensor
    y: Tensor
    wrong: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls, seed: int, noise: float = NOISE) -> Digits:
        x, y = load_digits(return_X_y=True)
        rng = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(x), generator=rng)
        x, y = torch.tensor(x / 16.0, dtype=torch.float32)[order], torch.tensor(y)[order]
        wrong = torch.zeros(N, dtype=torch.bool)
        wrong[torch.randperm(N, generator=rng)[: int(noise * N)]] = True
        labels = y[:N].clone()
        labels[wrong] = (labels[wrong] + torch.randint(1, 10, (int(wrong.sum()),), generator=rng)) % 10
        return cls(x[:N], labels, wrong, x[N:], y[N:])

    def batches(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """The first so many mini-batches in the order of the data, which is random."""
        return [(self.x[i : i + BATCH], self.y[i : i + BATCH]) for i in range(0, count * BATCH, BATCH)]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


@dataclasses.dataclass(eq=False)
class Run:
    """A training run: the model, and what was written down on the way."""

    model: nn.Module
    data: Digits
    states: list[dict[str, Tensor]]  # before epoch 1, 2, ..., and at the end
    dlp: np.ndarray  # epochs x samples, NaN where not visited
    loss: np.ndarray
    chosen: list[Tensor]  # dataset indices used in each epoch
    largest_gradient: float
    rates: list[float]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model(x), y, reduction="none")

    def at(self, epoch: int) -> None:
        self.model.load_state_dict(self.states[epoch])

    def scores(self, values: np.ndarray, epoch: int, decay: float) -> Scores:
        """The table that a sampler would have after so many epochs."""
        table = Scores(N, decay)
        for row in values[:epoch]:
            table.record(torch.arange(N), torch.from_numpy(row))
        return table

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.model(self.data.test_x).argmax(1) == self.data.test_y).double().mean())


def train(seed: int, method, policy, *, momentum: float = 0.9, rate=None, noise: float = NOISE) -> Run:
    """The loop of the README; ``rate`` is the learning rate of each epoch from 1 on, by default a cosine."""
    data, model = Digits.load(seed, noise), network(seed)
    rate = rate or (lambda t: LR * (1 + np.cos(np.pi * (t - 1) / EPOCHS)) / 2)
    indexed = Indexed(TensorDataset(data.x, data.y))
    sampler = SelectiveBatchSampler(indexed, BATCH, policy, seed=seed)
    loader = DataLoader(indexed, batch_sampler=sampler)
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    opt = SharpnessAware(base, method, model)
    run = Run(model, data, [copied(model)], np.full((EPOCHS, N), np.nan), np.full((EPOCHS, N), np.nan), [], 0.0, [])
    for epoch in range(EPOCHS):
        base.param_groups[0]["lr"] = float(rate(epoch + 1))
        run.rates.append(float(rate(epoch + 1)))
        used = []
        for x, y, index in loader:
            weight = sampler.weight(index)
            feedback = opt.backward(run.losses, x, y, index=index, weight=weight)
            sampler.update(feedback)
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            run.largest_gradient = max(run.largest_gradient, float(gradient.norm()))
            opt.step()
            opt.zero_grad()
            run.dlp[epoch, index] = feedback.sharpness.numpy()
            run.loss[epoch, index] = feedback.loss.numpy()
            used.append(index)
        run.chosen.append(torch.cat(used))
        run.states.append(copied(model))
    return run


# -- what is measured -----------------------------------------------------------------------------------------------


def lemma1(runs: dict[str, Run]) -> dict:
    """DLP against the gradient norm and against the projection, over training and over rho."""
    over_training, averages = [], []
    for name, run in runs.items():
        for epoch in WATCHED:
            run.at(epoch)
            lemma = theory.lemma1(run.model, run.losses, run.data.batches(8), RHO)
            kinds = {"norm": lemma.norm, "projection": lemma.projection}
            rows = {k: dataclasses.asdict(v) for k, v in kinds.items()}
            over_training.append({"run": name, "epoch": epoch, "cosine": lemma.cosine, **rows})
            if epoch >= 1:
                norms = dg.sample_gradient_norms(run.model, run.losses, run.data.x, run.data.y)
                average = theory.average_dlp(run.dlp[:epoch], norms, RHO)
                averages.append({"run": name, "epoch": epoch, **dataclasses.asdict(average)})
    run = runs["SAM 0"]
    run.at(8)
    over_rho, points = [], []
    for rho in (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5):
        lemma = theory.lemma1(run.model, run.losses, run.data.batches(8), rho)
        rows = {"norm": dataclasses.asdict(lemma.norm), "projection": dataclasses.asdict(lemma.projection)}
        over_rho.append({"rho": rho, **rows})
        if rho == RHO:
            both = zip(lemma.dlp, lemma.norms, lemma.projections, strict=True)
            points = [{"dlp": d, "norm": n, "projection": p} for d, n, p in both]
    return {"over_training": over_training, "averages": averages, "over_rho": over_rho, "points": points}


POLICIES = {
    "AUSampling": (AUSampling(alpha=0.5, ramp=10), "dlp"),
    "unbiased": (AUSampling(alpha=0.5, ramp=10, unbiased=True), "dlp"),
    "Random": (Random(alpha=0.5), "loss"),
    "TopLoss": (TopLoss(alpha=0.5), "loss"),
}


def tables(run: Run, epoch: int):
    for name, (policy, signal) in POLICIES.items():
        yield name, policy, run.scores(getattr(run, signal), epoch, policy.decay)


def theorem1(runs: dict[str, Run]) -> dict:
    """How often the bound fails on real mini-batches, with what each policy keeps."""
    rows = []
    for name, run in runs.items():
        for epoch in WATCHED[1:]:
            run.at(epoch)
            for policy_name, policy, scores in tables(run, epoch):
                if policy_name == "unbiased":
                    continue  # the same draw as AUSampling
                results = []
                for b, batch in enumerate(run.data.batches(N // BATCH)):
                    candidates = torch.arange(b * BATCH, (b + 1) * BATCH)
                    rng = torch.Generator().manual_seed(1000 * epoch + b)
                    kept, _ = policy.choose(scores, epoch, candidates[None], rng)
                    results.append(theory.theorem1(run.model, run.losses, batch, kept[0], RHO, chunk=BATCH))
                summary = dataclasses.asdict(theory.theorem1_summary(results))
                rows.append({"run": name, "epoch": epoch, "policy": policy_name, **summary})
    return {"over_training": rows}


def theorem2() -> dict:
    """Plain SGD without momentum, as the proof has it, with the theorem's learning rates and with a cosine."""
    rows = []
    schedules = {"1/t^2": lambda t: 0.5 / t**2, "cosine": lambda t: 0.25 * (1 + np.cos(np.pi * (t - 1) / EPOCHS))}
    for name, rate in schedules.items():
        for seed in SEEDS:
            run = train(seed, Plain(), Full(), momentum=0.0, rate=rate)
            result = theory.theorem2(
                run.model,
                run.losses,
                run.data.batches(4),
                run.states[:-1],
                run.rates[:-1],
                iterations=N // BATCH,
                gradient_bound=run.largest_gradient,
            )
            rows.append({"schedule": name, "seed": seed, "accuracy": run.accuracy(), **dataclasses.asdict(result)})
    return {"runs": rows}


def theorem3() -> dict:
    """The bound for several alphas and selections on two convex problems, and where it fails."""
    data = Digits.load(0)
    x = torch.cat([data.x, torch.ones(N, 1)], dim=1).double()
    y = torch.where(data.y < 5, -1.0, 1.0).double()
    problems = {"quadratic": theory.Quadratic.draw(), "logistic": theory.LogisticRegression(x / x.norm(dim=1).max(), y)}
    rows = []
    for name, problem in problems.items():
        for selection in ("random", "ausam", "largest"):
            for alpha in (0.125, 0.25, 0.5, 1.0):
                for step in (0.05, 0.5):
                    result = theory.theorem3(
                        problem,
                        alpha=alpha,
                        batch=32,
                        eta=step / problem.tau,
                        rho=0.25 / problem.tau,
                        steps=1000,
                        runs=8,
                        selection=selection,
                    )
                    rows.append({"problem": name, "step": step, **dataclasses.asdict(result)})
    fails = []
    for eta in (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4):
        result = theory.theorem3_counterexample(eta=eta, steps=int(20 / eta))
        fails.append({"eta": eta, **dataclasses.asdict(result)})
    return {"problems": rows, "counterexample": fails}


FIELDS = ("gradient_norm", "bias", "error", "relative", "cosine", "gap", "gap_as_written", "paper", "corrected")
FIELDS += ("paper_holds", "corrected_holds")


def theorem4(runs: dict[str, Run]) -> dict:
    """The bias of the expected gradient, relative to the gradient, over training."""
    rows = []
    for name, run in runs.items():
        for epoch in WATCHED[1:]:
            run.at(epoch)
            for policy_name, policy, scores in tables(run, epoch):
                results = []
                for b, batch in enumerate(run.data.batches(4)):
                    index = torch.arange(b * BATCH, (b + 1) * BATCH)
                    results.append(
                        theory.theorem4(
                            run.model, run.losses, batch, policy, scores, epoch, index=index, rho=RHO, chunk=BATCH
                        )
                    )
                mean = {field: float(np.mean([getattr(f, field) for f in results])) for field in FIELDS}
                rows.append({"run": name, "epoch": epoch, "policy": policy_name, "exact": results[0].exact, **mean})
    return {"over_training": rows}


def resting(run: Run, name: str) -> dict:
    """Norm of the gradient of all samples and, for AUSAM, of what its policy would choose, expected over draws."""
    gradients = dg.sample_gradients(run.model, run.losses, run.data.x, run.data.y, chunk=128).double()
    norms = {"gradient_norm": float(gradients.mean(0).norm())}
    if name.startswith("AUSAM"):
        policy, scores = POLICIES["AUSampling"][0], run.scores(run.dlp, EPOCHS, 1.0)
        each = [theory.expected_selection(policy, scores, EPOCHS, index) for index in torch.arange(N).split(BATCH)]
        coefficient = torch.from_numpy(np.concatenate([e.coefficient for e in each])) / len(each)
        norms["chosen_gradient_norm"] = float((coefficient @ gradients).norm())
    return norms


def flatness(runs: dict[str, Run]) -> dict:
    """Eigenvalues, trace, sharpness and slices at the last weights, on all training samples."""
    rows, lines = [], []
    for name, run in runs.items():
        run.at(EPOCHS)
        batches = run.data.batches(N // BATCH)
        eigen = dg.hessian_eigenvalues(run.model, run.losses, batches, k=5)
        trace = dg.hessian_trace(run.model, run.losses, batches, probes=100)
        radii = [0.05, 0.1, 0.2, 0.5, 1.0]
        kinds = {
            "sharpness": dg.sharpness(run.model, run.losses, batches, radii),
            "m_sharpness": dg.sharpness(run.model, run.losses, batches, radii, m=BATCH),
            "adaptive": dg.sharpness(run.model, run.losses, batches, radii, adaptive=True),
        }
        line = dg.loss_line(run.model, run.losses, batches, radius=1.0, points=41)
        rows.append(
            {
                "run": name,
                "accuracy": run.accuracy(),
                **resting(run, name),
                "weight_norm": float(torch.cat([p.detach().flatten() for p in run.model.parameters()]).norm()),
                "eigenvalues": dataclasses.asdict(eigen),
                "trace": dataclasses.asdict(trace),
                **{k: dataclasses.asdict(v) for k, v in kinds.items()},
            }
        )
        lines.append({"run": name, **dataclasses.asdict(line)})
    first, second = runs["SGD 0"], runs["SAM 0"]
    batches = first.data.batches(N // BATCH)
    between = dg.loss_between(first.model, first.losses, batches, first.states[-1], second.states[-1], points=41)
    return {"runs": rows, "lines": lines, "between": dataclasses.asdict(between)}


def geometry(runs: dict[str, Run]) -> dict:
    """SAM's gradient beside the plain one, over training, and who was chosen."""
    steps, chosen = [], []
    for name, run in runs.items():
        for epoch in WATCHED:
            run.at(epoch)
            steps = [dg.step_geometry(run.model, run.losses, [b], RHO) for b in run.data.batches(8)]
            fields = [f.name for f in dataclasses.fields(steps[0])]
            mean = {f: float(np.mean([getattr(s, f) for s in steps])) for f in fields}
            steps.append({"run": name, "epoch": epoch, **mean})
        scores = run.scores(run.dlp, EPOCHS, 1.0).mean if not np.isnan(run.dlp).all() else None
        who = dataclasses.asdict(dg.selection(run.chosen, N, classes=run.data.y, wrong=run.data.wrong, scores=scores))
        del who["visits"], who["longest_gap"]
        chosen.append({"run": name, **who})
    return {"steps": steps, "selection": chosen}


def measure(only: list[str] | None = None) -> dict:
    kinds = {
        "SGD": (Plain(), Full()),
        "SAM": (SAM(rho=RHO), Full()),
        "AUSAM-0.5": (SAM(rho=RHO), AUSampling(alpha=0.5, ramp=10)),
        "SAM+Random": (SAM(rho=RHO), Random(alpha=0.5)),
    }
    runs = {f"{name} {seed}": train(seed, *pair) for name, pair in kinds.items() for seed in SEEDS}
    clean = {f"SAM clean {seed}": train(seed, SAM(rho=RHO), Full(), noise=0.0) for seed in SEEDS}
    print("trained", flush=True)
    aware = {k: v for k, v in runs.items() if k.startswith(("SAM ", "AUSAM"))} | clean
    result = {"conditions": conditions()}
    for part, measure_part in (
        ("lemma1", lambda: lemma1(aware)),
        ("theorem1", lambda: theorem1(aware)),
        ("theorem2", theorem2),
        ("theorem3", theorem3),
        ("theorem4", lambda: theorem4(aware)),
        ("flatness", lambda: flatness(runs)),
        ("geometry", lambda: geometry(runs)),
    ):
        if only is None or part in only:
            result[part] = measure_part()
            print(part, flush=True)
    return result


def conditions() -> dict:
    commit, changed = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=RESULTS).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "../../src"])
    )
    return {
        "data": f"digits, {N} for training with {NOISE:.0%} wrong labels (clean: none), {1797 - N} for testing",
        "network": "64-64-64-10, ReLU",
        "batch": BATCH,
        "epochs": EPOCHS,
        "rho": RHO,
        "lr": LR,
        "seeds": SEEDS,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "sklearn": sklearn.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "commit": commit + ("+" if changed else ""),
    }


def rounded(value):
    """Numbers with six digits: the file is for reading."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PART", help="measure these parts again, keep the others")
    parser.add_argument("--charts", action="store_true", help="only draw, from the numbers that are there")
    arguments = parser.parse_args()
    path = RESULTS / "theory.json"
    if not arguments.charts:
        torch.set_num_threads(1)
        results = json.loads(path.read_text()) if arguments.only else {}
        results |= measure(arguments.only)
        path.write_text(json.dumps(rounded(results), indent=1) + "\n")
    from theory_charts import draw  # beside this file; needs what measuring does not

    draw(RESULTS)


if __name__ == "__main__":
    main()
