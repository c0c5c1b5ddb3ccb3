"""At equal cost: is a chosen part of each mini-batch worth more than as many random samples, and than SGD?

    python research/equal_cost/benchmark.py --out runs/equal-cost          # train what is missing, then the tables
    python research/equal_cost/benchmark.py --out DIR --only digits-noisy  # one problem, or PROBLEM/ROW; * is anything
    python research/equal_cost/benchmark.py                                # tables from results.json alone
    python research/equal_cost/benchmark.py --smoke                        # seconds, in a temporary folder

Cost is the number of samples through forward and backward passes, SAM = 100 %. A contender is compared with its random
baseline (the same method on as many samples, drawn at random; "twin" in the files) and with the SGD of its budget.
recipe.toml names both, and one primary contrast per problem, before anything runs. Differences are per seed. The
primary contrast needs no correction; of all others, those of one budget are corrected together (Holm).

A row whose runs have all ended in DIR replaces that of results.json. Several processes may share DIR. 2,225 runs take
some days of one core.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import re
import statistics
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy import stats

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
NONE = "–"
MICRO = """
title = "A micro benchmark"
seeds = 2
margin = 0.5
tuning = "nothing"
[budget."0.5"]
sgd = "sgd"
controls = ["sgd", "sam+random"]
contenders = [{ name = "ausam-0.5", twin = "sam+random" }]
[budget."1"]
controls = ["sam"]
[[block]]
name = "digits"
column = "Digits"
settings = { data = "digits", train_size = 128, test_size = 100, epochs = 2, threads = 1 }
settings_of."s[ag]*" = { lr = 0.02 }
primary = "ausam-0.5"
"""


@dataclass(frozen=True)
class Entry:
    """A contender or a control under a budget, with one figure per seed once its runs have ended.

    Attributes:
        budget: the fraction of SAM's samples that it may use; ``cost``: the fraction that it used.
        control: its choice of samples does not depend on scores.
        twin: of a contender: its random baseline.
        sgd: of a contender: the SGD that the recipe fixed for this budget.
        tail: mean accuracy on the rare classes, where classes are unequal.
        cpu_seconds: of the training of one run, in the mean. Rows of version 0.3 have none.
        environment: processor, threads, versions and commit of the runs. Rows of version 0.3 have none.
    """

    name: str
    label: str
    budget: float
    control: bool
    twin: str = ""
    sgd: str = ""
    cost: float | None = None
    scores: list[float] = field(default_factory=list)
    nlls: list[float] = field(default_factory=list)
    calibration_errors: list[float] = field(default_factory=list)
    tail: float | None = None
    cpu_seconds: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """One problem, with everything that ran on it. Differences within the margin are level."""

    name: str
    title: str
    about: str
    tuning: str
    primary: str
    margin: float
    seeds: int
    entries: list[Entry]
    metric: str = "accuracy"
    unit: str = "%"
    lower_is_better: bool = False

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    @property
    def decimals(self) -> int:
        return 2 if self.unit == "%" else 4


# -- the recipe and its runs ---------------------------------------------------------------------------------------


def planned(recipe: dict[str, Any]) -> list[Problem]:
    """The problems of a recipe: the rows of all blocks, with the block's own, by budget; nothing has run."""
    problems = []
    for block in recipe["block"]:
        entries = []
        for budget in sorted({*recipe["budget"], *block.get("budget", {})}, key=float):
            parts = [part.get("budget", {}).get(budget, {}) for part in (recipe, block)]
            sgd = next((part["sgd"] for part in reversed(parts) if "sgd" in part), "")
            for kind in ("controls", "contenders"):
                for row in (row for part in parts for row in part.get(kind, [])):
                    about = {"name": row} if isinstance(row, str) else row
                    of_contender = {} if kind == "controls" else {"sgd": sgd}
                    entries.append(
                        Entry(label="", budget=float(budget), control=kind == "controls", **of_contender | about)
                    )
        left_out = block.get("without", [])
        entries = [e for e in entries if not any(fnmatch.fnmatchcase(e.name, pattern) for pattern in left_out)]
        problems.append(
            Problem(
                block["name"],
                block["column"],
                "",
                block.get("tuning", ""),
                block["primary"],
                block.get("margin", recipe["margin"]),
                block.get("seeds", recipe["seeds"]),
                entries,
            )
        )
    return problems


def run(recipe: dict[str, Any], out: Path, only: Sequence[str]) -> list[Problem]:
    """Train what is missing, seeds in the outer loop; return the problems with the rows whose runs have all ended."""
    from ausam_lab.data.catalogue import changes, resolve
    from ausam_lab.experiments.cells import Cell
    from ausam_lab.experiments.run_cells import in_turn
    from ausam_lab.names.from_config import configured
    from ausam_lab.names.pairs import label
    from ausam_lab.training.run_folder import finished

    problems = planned(recipe)
    cells: dict[tuple[str, str], list[Cell]] = {}
    shared = {}
    for block, problem in zip(recipe["block"], problems, strict=True):
        config = shared[problem.name] = resolve(**block["settings"])
        for entry in problem.entries:
            own = configured(entry.name, config, rho_given="rho" in block["settings"])
            for pattern, settings in block.get("settings_of", {}).items():
                if fnmatch.fnmatchcase(entry.name, pattern):
                    own = replace(own, **settings)
            seeds = range(problem.seeds)
            cells[problem.name, entry.name] = [Cell(problem.name, entry.name, replace(own, seed=s)) for s in seeds]
    every = sorted((cell for row in cells.values() for cell in row), key=lambda cell: cell.config.seed)
    wanted = [cell for cell in every if not only or any(cell.matches(pattern) for pattern in only)]
    for cell, outcome in in_turn(wanted, out, lambda *_: None):
        if outcome is not None:
            print(cell.id, outcome, flush=True)
    done = []
    for problem in problems:
        config, entries, first = shared[problem.name], [], None
        for entry in problem.entries:
            runs = [finished(cell.folder(out)) for cell in cells[problem.name, entry.name]]
            if all(one is not None for one in runs):
                first = runs[0]
                sam = 4 * first.data.train * config.epochs  # forward and backward, twice
                entry = replace(
                    entry,
                    cost=(first.samples_forward + first.samples_backward) / sam,
                    scores=[one.test.value for one in runs],
                    nlls=[one.test.nll for one in runs if one.test.nll is not None],
                    calibration_errors=[one.test.calibration_error for one in runs if one.test.nll is not None],
                    tail=statistics.fmean(one.test.parts["tail"] for one in runs)
                    if "tail" in first.test.parts
                    else None,
                    cpu_seconds=round(statistics.fmean(one.cpu_seconds for one in runs), 2),
                    environment=conditions(runs),
                )
            entries.append(replace(entry, label=label(entry.name, config.base)))
        about = f"{config.model} on {config.data}{changes(config)}, {config.epochs} epochs"
        score = {} if first is None else {"metric": first.test.name}
        done.append(replace(problem, about=about, entries=entries, **score))
    return done


def conditions(runs: Sequence[Any]) -> dict[str, Any]:
    """Where the runs of a row ran; several values of one entry are joined."""
    found: dict[str, set[str]] = {}
    for run in runs:
        hardware, versions = run.environment.hardware, run.environment.versions
        entries = {"cpu": hardware.cpu, "threads": hardware.threads, "commit": run.environment.commit}
        for name, value in (entries | {name: versions[name] for name in ("ausam", "torch", "system")}).items():
            found.setdefault(name, set()).add(str(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


# -- results.json --------------------------------------------------------------------------------------------------


def read(path: Path = RESULTS) -> list[Problem]:
    """The problems that were measured."""
    problems = json.loads(path.read_text())["problems"]
    return [Problem(**problem | {"entries": [Entry(**entry) for entry in problem["entries"]]}) for problem in problems]


def joined(old: list[Problem], new: list[Problem]) -> list[Problem]:
    """Everything that was measured: a row of the new problems whose runs have ended replaces the old one."""
    later = {problem.name: problem for problem in new}
    whole = [_joined(problem, later.pop(problem.name, problem)) for problem in old]
    return whole + list(later.values())


def _joined(old: Problem, new: Problem) -> Problem:
    if not any(entry.scores for entry in new.entries):
        return old
    if old.seeds != new.seeds:
        raise ValueError(f"{new.name} has {old.seeds} seeds in results.json and {new.seeds} now. Run all of its rows.")
    return replace(new, entries=[e if e.scores else old.entry(e.name) or e for e in new.entries])


def write(problems: list[Problem], path: Path) -> None:
    rows = [
        {**vars(p), "entries": [{k: v for k, v in vars(e).items() if v not in (None, [], {})} for e in p.entries]}
        for p in problems
    ]
    text = json.dumps({"problems": rows}, indent=1, ensure_ascii=False)
    # the figures of all seeds in one line
    path.write_text(re.sub(r"\[\s+([-\d.e+,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n")


# -- statistics ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The mean difference over seeds with its 95 % t interval."""

    mean: float
    low: float
    high: float
    p: float

    def text(self, digits: int) -> str:
        star = "*" if self.p < 0.05 else ""
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]{star}".replace("-", "−")


def paired(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """The difference of two rows, seed by seed; None while one has no runs."""
    if not a or not b:
        return None
    d = [x - y for x, y in zip(a, b, strict=True)]
    test = stats.ttest_1samp(d, 0.0)
    low, high = test.confidence_interval(0.95)
    return Difference(statistics.fmean(d), float(low), float(high), float(test.pvalue))


def holm(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """The same with corrected p: the k-th smallest of m times m + 1 - k, kept non-decreasing."""
    known = sorted((d.p, i) for i, d in enumerate(differences) if d is not None)
    out, largest = list(differences), 0.0
    for k, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - k)))
        out[i] = replace(out[i], p=largest)
    return out


def contrasts(problem: Problem) -> dict[str, dict[str, Difference | None]]:
    """Of each contender: its differences from its random baseline ("twin") and from SGD, corrected within a budget."""
    found: dict[str, dict[str, Difference | None]] = {}
    for budget in {entry.budget for entry in problem.entries}:
        asked = [e for e in problem.entries if e.budget == budget and not e.control]
        for kind in ("twin", "sgd"):
            beside = [problem.entry(getattr(e, kind)) for e in asked]
            each = [paired(e.scores, [] if b is None else b.scores) for e, b in zip(asked, beside, strict=True)]
            for entry, difference in zip(asked, holm(each), strict=True):
                found.setdefault(entry.name, {})[kind] = difference
    return found


def verdict(problem: Problem) -> str:
    """What the primary contrast says."""
    contender = problem.entry(problem.primary)
    baseline = problem.entry(contender.twin) if contender else None
    difference = paired(contender.scores, baseline.scores) if contender and baseline else None
    if difference is None:
        return "unfinished"
    if difference.p < 0.05:
        return "better" if (difference.mean > 0) != problem.lower_is_better else "worse"
    return "equivalent" if max(-difference.low, difference.high) < problem.margin else "no difference shown"


# -- tables and pictures -------------------------------------------------------------------------------------------


def table(part: str) -> str:
    """A table of results.json in Markdown: "primary", "subset", "tuned", or a problem: everything that ran."""
    problems = read()
    if part == "primary":
        return primary_table(problems)
    if part == "subset":
        return primary_table(problems, short=True)
    if part == "tuned":
        return tuned_table(problems)
    return problem_table(next(p for p in problems if p.name == part))


def primary_table(problems: list[Problem], *, short: bool = False) -> str:
    """The primary contrast of each problem; short: without the verdict, the score and SGD."""
    head = ["Problem", "Row", "beside its random subset", "Score", "minus random subset [95 %]", "minus SGD [95 %]"]
    lines = []
    for problem in problems:
        contender = problem.entry(problem.primary)
        if contender is None or not contender.scores:
            continue
        digits = problem.decimals
        differences = [
            _text(paired(contender.scores, problem.entry(contender.twin).scores), digits),
            _text(contrasts(problem)[contender.name]["sgd"], digits),
        ]
        lines.append([problem.title, contender.label, verdict(problem), _score(contender.scores, digits), *differences])
    if short:
        head, *lines = ([line[0], line[1], line[4]] for line in (head, *lines))
        return markdown(head, lines, left=2)
    return markdown(head, lines, left=3)


def tuned_table(problems: list[Problem]) -> str:
    """Accuracy of the best SGD and of three ways to use SAM, each at its tuned rate; the best of a line in bold.

    SGD is the best in the mean of all its rows that cost no more than SGD (fewer epochs, smaller batches).
    """
    names = ("sam+random", "SAM(ascent=0.5) + Trusted(alpha=0.67)", "sam")
    head = ["", "SGD at its best, up to 1x", "SAM on a random half, 1x", "SAM with Trusted, 1x", "SAM, 2x"]
    lines = []
    for problem in problems:
        rows = [problem.entry(name) for name in names]
        plain = [e for e in problem.entries if re.fullmatch(r"sgd(@[\d.x]+)?", e.name) and e.scores and e.cost <= 0.5]
        if any(row is None or not row.scores for row in rows):
            continue
        best = max(plain, key=lambda e: statistics.fmean(e.scores))
        means = [statistics.fmean(e.scores) for e in (best, *rows)]
        shown = [f"{mean:.1f}" for mean in means]
        top = max(float(text) for text in shown)
        lines.append([problem.title, *(f"BOLD{text}BOLD" if float(text) == top else text for text in shown)])
    return markdown(head, lines, left=1).replace("BOLD", "**")


def problem_table(problem: Problem) -> str:
    """Everything that ran on a problem, by budget; (c) marks a control."""
    ran = sorted((e for e in problem.entries if e.scores), key=lambda e: e.budget)
    likely, tails = all(e.nlls for e in ran), any(e.tail is not None for e in ran)
    metric = f"{problem.metric[:1].upper()}{problem.metric[1:]} {problem.unit}".strip()
    head = ["Budget", "Method", metric + (" (lower is better)" if problem.lower_is_better else "")]
    head += ["NLL", "ECE %"] if likely else []
    head += ["from its random twin [95 %]", "from SGD [95 %]", "Samples%", "Runs", *(["Tail %"] if tails else [])]
    compared = contrasts(problem)
    lines = []
    for entry in ran:
        means = (
            [f"{statistics.fmean(entry.nlls):.3f}", f"{statistics.fmean(entry.calibration_errors):.1f}"]
            if likely
            else []
        )
        both = [_text(compared.get(entry.name, {}).get(kind), problem.decimals) for kind in ("twin", "sgd")]
        name = entry.label + (" (c)" if entry.control else "")
        line = [f"{100 * entry.budget:g} %", name, _score(entry.scores, problem.decimals), *means, *both]
        line += [f"{100 * entry.cost:.1f}", str(len(entry.scores))]
        lines.append(line + ([NONE if entry.tail is None else f"{entry.tail:.1f}"] if tails else []))
    return markdown(head, lines, left=2)


def markdown(head: list[str], lines: list[list[str]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line).replace("*", "\\*") + " |" for line in (head, rule, *lines))


def _score(scores: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(scores):.{digits}f} ± {statistics.stdev(scores):.{digits}f}"


def _text(difference: Difference | None, digits: int) -> str:
    return NONE if difference is None else difference.text(digits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder of the runs; without it nothing is trained")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="PROBLEM, ROW or PROBLEM/ROW")
    parser.add_argument("--smoke", action="store_true", help="a micro benchmark in a temporary folder")
    options = parser.parse_args()
    if options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            problems = run(tomllib.loads(MICRO), Path(folder), [])
            write(problems, Path(folder) / "results.json")
            problems = joined(read(Path(folder) / "results.json"), planned(tomllib.loads(MICRO)))
        assert all(math.isfinite(score) for problem in problems for entry in problem.entries for score in entry.scores)
    elif options.out:
        problems = joined(read(), run(tomllib.loads((FOLDER / "recipe.toml").read_text()), options.out, options.only))
        write(problems, RESULTS)
    else:
        problems = read()
    print(primary_table(problems))
    for problem in problems:
        print(f"\n{problem.title}\n\n{problem_table(problem)}")


if __name__ == "__main__":
    main()
