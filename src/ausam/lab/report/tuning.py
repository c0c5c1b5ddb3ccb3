"""The result of a search for settings, as a table."""

from __future__ import annotations

from ausam.lab.records.results import Round, Trial, Tuning
from ausam.lab.report.statistics import against
from ausam.lab.report.summary import heading, interval
from ausam.lab.report.text import NONE, join, show, text_table

RULE = (
    "± is the standard deviation over seeds. The difference from the best of the round is the mean over seeds with its "
    "95 % interval. A star means significant at 5 %, after Holm's correction over the round. Samples% is work, SAM = "
    "100. Each round is a complete training with its own learning rate schedule, so a short round may favour "
    "different settings from a long one."
)


def text(found: Tuning) -> str:
    """Every trial with the last round it reached, best first, and the recommended settings."""
    rounds = list(reversed(found.rounds))
    first = best(found)
    row = next(t.row for t in rounds[0].trials if t.row is not None)
    head = [*first.settings, "Epochs", heading(row.metric, row.unit, row.lower_is_better), "from the best [95 %]"]
    lines: list[list[str]] = []
    ends, shown = [], set()
    for one in rounds:
        lines += [line for trial, line in _lines(one) if _key(trial) not in shown]
        shown |= {_key(trial) for trial in one.trials}
        ends.append(len(lines) - 1)
    table = text_table([*head, "Samples%", "Train s"], lines, ends[:-1], left=())
    score = f"{row.metric} {show(row.mean, row.decimals, row.std)} {row.unit}".rstrip()
    judge = f"{100 * found.config.validation:g} % of the training samples"
    seeds = "one seed" if row.n == 1 else f"{row.n} seeds"
    last = f"Best: {_flags(first)} ({score} on {judge}, {seeds}).{_tie(found)} No test sample was used."
    return "\n\n".join([table, RULE, last])


def best(found: Tuning) -> Trial:
    """The first trial of the last round; of several with the same score, the one that was named first."""
    return found.rounds[-1].trials[0]


def _flags(trial: Trial) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in trial.settings.items())


def _tie(found: Tuning) -> str:
    """The trials that share the best score, if any."""
    first, *rest = found.rounds[-1].trials
    same = [t for t in rest if t.row is not None and first.row is not None and t.row.mean == first.row.mean]
    return f" A tie with {join([_flags(trial) for trial in same])}: it is only the first of them." if same else ""


def _key(trial: Trial) -> tuple[tuple[str, float], ...]:
    return tuple(trial.settings.items())


def _lines(one: Round) -> list[tuple[Trial, list[str]]]:
    first, *rest = [trial.row for trial in one.trials if trial.row is not None]
    differences = iter([None, *against(rest, first)])
    found = []
    for trial in one.trials:
        settings = [f"{value:g}" for value in trial.settings.values()]
        figures = ["failed", NONE, NONE, NONE]
        if (row := trial.row) is not None:
            cost = None if trial.cost is None else 100 * trial.cost
            score = show(row.mean, row.decimals, row.std)
            figures = [score, interval(next(differences), row.decimals), show(cost, 1), show(row.mean_seconds, 1)]
        found.append((trial, [*settings, str(one.epochs), *figures]))
    return found
