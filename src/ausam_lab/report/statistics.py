"""Statistics over seeds: rows of a table from runs, and whether the difference of two rows is significant.

Runs with the same seed share data order, initial weights and noise, so differences are taken per seed ("paired"):

    d_i = score of A with seed i - score of B with seed i

The 95 % interval of the mean of d is Student's t, and p comes from the paired t test. With ten seeds a BCa bootstrap
covers 86 to 91 %. The steps of a permutation test are too coarse to survive a correction. Holm's correction (1979)
controls the error rate over several comparisons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ausam_lab.records.comparison import Difference, NamedRun, Row
from ausam_lab.records.run import Run
from ausam_lab.report.text import NONE

LEVEL = 0.95
BETTER, WORSE, UNCLEAR, UNFINISHED = "better", "worse", "too few seeds to tell", "unfinished"


def rows(names: Sequence[tuple[str, str]], runs: Sequence[NamedRun]) -> tuple[Row, ...]:
    """One row per (name, label) with runs, in the given order. Holm's correction covers all rows but SAM."""
    by_name = {name: [r.run for r in runs if r.name == name] for name, _ in names}
    sam = {r.seed: r for r in by_name.get("sam", [])}
    known = [_row(name, label, by_name[name], sam) for name, label in names if by_name[name]]
    beside = [r for r in known if r.name != "sam"]
    one = next((r for r in known if r.name == "sam"), None)
    if one is None:
        return tuple(known)
    corrected = dict(zip((r.name for r in beside), holm([paired(r, one) for r in beside]), strict=True))
    return tuple(replace(r, against_sam=corrected.get(r.name)) for r in known)


def paired(a: Row, b: Row) -> Difference | None:
    """The difference of two rows over their common seeds, with uncorrected p. None without such a seed.

    A single seed has no interval and no p. Nor do differences without spread.
    """
    theirs = dict(zip(b.seeds, b.scores, strict=True))
    d = [score - theirs[seed] for seed, score in zip(a.seeds, a.scores, strict=True) if seed in theirs]
    if not d:
        return None
    n, mean = len(d), statistics.fmean(d)
    if n == 1 or max(d) - min(d) <= 1e-9 * max(map(abs, d)):
        return Difference(n, mean)
    from scipy import stats  # here, because the import takes a second

    test = stats.ttest_1samp(d, 0.0)
    interval = test.confidence_interval(LEVEL)
    return Difference(n, mean, float(interval.low), float(interval.high), float(test.pvalue))


def holm(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """The same with corrected p: the k-th smallest of m times m + 1 - k, kept non-decreasing."""
    known = sorted((d.p, i) for i, d in enumerate(differences) if d is not None and d.p is not None)
    out, largest = list(differences), 0.0
    for k, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - k)))
        one = differences[i]
        if one is not None:
            out[i] = replace(one, p=largest)
    return out


def standing(difference: Difference | None) -> str:
    """How a row stands against another, from their difference over common seeds. None without such a seed.

    Equal differences of several seeds have no spread, hence no p: whatever their mean, they decide nothing.

    >>> standing(Difference(n=3, mean=1.5, low=1.25, high=1.75, p=0.006))
    'better'
    >>> standing(Difference(n=2, mean=1.5))
    'too few seeds to tell'
    """
    if difference is None:
        return UNFINISHED
    if not difference.clear:
        return UNCLEAR
    return BETTER if difference.mean > 0 else WORSE


def interval(difference: Difference | None) -> str:
    """A difference with its 95 % interval: ``+0.31 [-0.20, +0.82]``. A star if it is significant."""
    if difference is None:
        return NONE
    text = f"{difference.mean:+.2f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.2f}, {difference.high:+.2f}]"
    return (text + ("*" if difference.clear else "")).replace("-", "−")


def p_text(difference: Difference | None) -> str:
    """The corrected p with three decimals. A dash where it is unknown."""
    return NONE if difference is None or difference.p is None else f"{max(difference.p, 0.001):.3f}"


def _row(name: str, label: str, runs: Sequence[Run], sam: Mapping[int, Run]) -> Row:
    first = runs[0]
    # same seeds on both sides of a ratio, both sides quantised or neither, and on the same machine
    both = [(r, sam[r.seed]) for r in runs if r.seed in sam and r.config.quantize == sam[r.seed].config.quantize]
    both = [(r, s) for r, s in both if r.environment.hardware == s.environment.hardware]
    seconds = math.fsum(r.train_seconds for r, _ in both)
    shared = [k for k in first.test.parts if all(k in r.test.parts for r in runs)]
    return Row(
        name=name,
        label=label,
        kind=first.config.kind,
        pair=first.pair,
        metric=first.test.name,
        seeds=tuple(r.seed for r in runs),
        scores=tuple(r.test.value for r in runs),
        parts={k: statistics.fmean(r.test.parts[k] for r in runs) for k in shared},
        seconds=tuple(r.train_seconds for r in runs),
        samples_forward=first.samples_forward,
        samples_backward=first.samples_backward,
        speed_of_sam=100.0 * math.fsum(s.train_seconds for _, s in both) / seconds if both else None,
        skipped=sum(r.skipped_steps for r in runs),
        nlls=_every(r.test.nll for r in runs),
        calibration_errors=_every(r.test.calibration_error for r in runs),
        unfitted=sum(r.audit is not None and r.audit.unfitted for r in runs),
        diverged=sum(r.audit is not None and r.audit.kind == "diverged" for r in runs),
        cpu_seconds=_every((r.cpu_seconds or None) if r.environment.hardware.device == "cpu" else None for r in runs),
    )


def _every(figures: Iterable[float | None]) -> tuple[float, ...]:
    """The figures, if all are known."""
    known = tuple(figures)
    return tuple(f for f in known if f is not None) if None not in known else ()
