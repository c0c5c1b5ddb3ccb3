"""The result of a search for settings: its text, and its page, tuning.html."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ausam_lab.data.catalogue import changes
from ausam_lab.records.comparison import Row
from ausam_lab.records.score import measured_on
from ausam_lab.records.tuning import Round, Trial, Tuning
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.statistics import against
from ausam_lab.report.summary import SPEED, heading, underfitting
from ausam_lab.report.table import Line, Section, Table, to_html, to_text
from ausam_lab.report.text import NONE, join, show
from ausam_lab.report.vega import Field, PlainRow
from ausam_lab.report.verdict import interval

if TYPE_CHECKING:
    from markupsafe import Markup

RULE = (
    "± is the standard deviation over seeds. The difference from the best of the round is the mean over seeds with its "
    "95 % interval. A star means significant at 5 %, after Holm's correction over the round. Samples% is work, SAM = "
    "100. Each round is a complete training with its own learning rate schedule, so a short round may favour "
    "different settings from a long one."
)


def text(tuning: Tuning) -> str:
    """Every trial with the last round it reached, best first, and the recommended settings."""
    command = f"To train with these settings:\n{train_command(tuning)}"
    return "\n\n".join([to_text(table(tuning)), RULE, recommendation(tuning), command])


def table(tuning: Tuning) -> Table:
    """Every trial once, in the last round that it reached, the last round first."""
    score = _first_row(tuning)
    head = [*best(tuning).settings, "Epochs", heading(score.metric, score.unit, score.lower_is_better)]
    sections, shown = [], set()
    for one in reversed(tuning.rounds):
        sections.append(Section(tuple(line for trial, line in _lines(one) if _key(trial) not in shown)))
        shown |= {_key(trial) for trial in one.trials}
    return Table((*head, "from the best [95 %]", "Samples%", "Train s"), tuple(sections), left=())


def recommendation(tuning: Tuning) -> str:
    """The best settings, with their score and what it was measured on."""
    row, first = _first_row(tuning), best(tuning)
    score = f"{row.metric} {show(row.mean, row.decimals, row.std)} {row.unit}".rstrip()
    judge = f"{100 * tuning.config.validation:g} % of the training samples"
    seeds = "one seed" if row.n == 1 else f"{row.n} seeds"
    warning = underfitting([row]).removesuffix(SPEED)
    choice = f"Best: {_flags(first)} ({score} on {judge}, {seeds}).{_tie(tuning)} No test sample was used."
    return f"{warning} {choice}".strip()


# flags of a search that a training with its best settings leaves out, or sets itself; each has a value
OF_THE_SEARCH = ("--method", "--policy", "--validation", "--seed", "--seeds", "--over", "--out", "--log")


def train_command(tuning: Tuning) -> str:
    """The command that trains with the best settings, on all training samples."""
    rest, words = [], iter(shlex.split(tuning.command)[2:])
    for word in words:
        if word in OF_THE_SEARCH:
            next(words)
        elif word.partition("=")[0] not in OF_THE_SEARCH:
            rest.append(word)
    settings: dict[str, float | str] = {
        "method": tuning.config.method,
        "policy": tuning.config.policy,
        **best(tuning).settings,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", _exact(value))]
    return shlex.join(["ausam", "train", *flags, *rest])


def _exact(value: float | str) -> str:
    """A setting on the command line, with all of its digits."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def best(tuning: Tuning) -> Trial:
    """The first trial of the last round; of several with the same score, the one that was named first."""
    return tuning.rounds[-1].trials[0]


def render(tuning: Tuning) -> str:
    """The page; it fetches nothing."""
    return html.page(_title(tuning), _fragments(tuning), width=62)


def pictures(tuning: Tuning) -> list[Picture]:
    """The first round, in which every trial took part: the score against each setting that has several values."""
    first = tuning.rounds[0]
    trials = [(trial, trial.row) for trial in first.trials if trial.row is not None]
    name, unit = _first_row(tuning).metric, _first_row(tuning).unit
    title = f"{measured_on(name)}{f' ({unit})' if unit else ''}"
    drawn = []
    for setting in best(tuning).settings:
        rows: list[PlainRow] = []
        for trial, row in sorted(trials, key=lambda pair: (_others(pair[0], setting), pair[0].settings[setting])):
            at = {"x": float(trial.settings[setting]), "y": row.mean, "others": _others(trial, setting)}
            spread = {} if row.std is None else {"low": row.mean - row.std, "high": row.mean + row.std}
            rows.append({**at, **spread, "score": f"{show(row.mean, row.decimals, row.std)} {row.unit}", "runs": row.n})
        if len({row["x"] for row in rows}) > 1:
            hover = [Field("x", setting, "~g"), Field("score", name), Field("runs", "runs")]
            spec = charts.lines(rows, Field("x", setting), Field("y", title), Field("others", "settings"), hover)
            note = f"The round of {first.epochs} epochs, which has every trial. Bands: one standard deviation."
            drawn.append(Picture(setting, spec, f"Score against {setting}", note))
    return drawn


def _title(tuning: Tuning) -> str:
    return f"{tuning.config.data}{changes(tuning.config)}: search for settings"


def _fragments(tuning: Tuning) -> Iterator[Markup]:
    config = tuning.config
    yield html.heading(_title(tuning), 1)
    yield html.paragraph(f"{config.method} × {config.policy}, {config.model}, up to {config.epochs} epochs", "soft")
    yield html.paragraph(recommendation(tuning), "lead")
    yield html.paragraph("To train with these settings:")
    yield html.code(train_command(tuning))
    yield to_html(table(tuning))
    yield html.paragraph(RULE, "note")
    for trial in (trial for one in tuning.rounds for trial in one.trials if trial.failed):
        yield html.paragraph(f"{_flags(trial)} failed: {trial.failed}", "open")
    yield from html.pictures(pictures(tuning))
    yield html.heading("Conditions")
    yield html.code(tuning.command or NONE)
    yield html.facts({"created": tuning.created, "seeds": tuning.seeds, "rounds": len(tuning.rounds)})


def _first_row(tuning: Tuning) -> Row:
    return next(trial.row for trial in tuning.rounds[-1].trials if trial.row is not None)


def _others(trial: Trial, setting: str) -> str:
    """The other settings of a trial."""
    return ", ".join(f"{name} {value:g}" for name, value in trial.settings.items() if name != setting) or "all trials"


def _flags(trial: Trial) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in trial.settings.items())


def _tie(tuning: Tuning) -> str:
    """The trials that share the best score, if any."""
    first, *rest = tuning.rounds[-1].trials
    same = [t for t in rest if t.row is not None and first.row is not None and t.row.mean == first.row.mean]
    return f" A tie with {join([_flags(trial) for trial in same])}: it is only the first of them." if same else ""


def _key(trial: Trial) -> tuple[tuple[str, float], ...]:
    return tuple(trial.settings.items())


def _lines(one: Round) -> Iterator[tuple[Trial, Line]]:
    first, *rest = [trial.row for trial in one.trials if trial.row is not None]
    differences = iter([None, *against(rest, first)])
    for trial in one.trials:
        settings = [f"{value:g}" for value in trial.settings.values()]
        figures = ["failed", NONE, NONE, NONE]
        if (row := trial.row) is not None:
            cost = None if trial.cost is None else 100 * trial.cost
            score = show(row.mean, row.decimals, row.std)
            figures = [score, interval(next(differences), row.decimals), show(cost, 1), show(row.mean_seconds, 1)]
        yield trial, Line((*settings, str(one.epochs), *figures))
