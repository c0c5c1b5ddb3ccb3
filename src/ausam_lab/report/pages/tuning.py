"""The result of a search for settings, from Optuna's study: its text, and its page, tuning.html."""

from __future__ import annotations

import shlex
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ausam_lab.records.run import Score, decimals, measured_on
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Field
from ausam_lab.report.summary import seconds_digits, times
from ausam_lab.report.table import Table, to_html, to_text
from ausam_lab.report.text import NONE, Screen, show, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup
    from optuna import Study
    from optuna.trial import FrozenTrial

RULE = (
    "± is the standard deviation over seeds. Cost counts samples in forward and backward passes, plain SGD has 1x. "
    "Time is CPU time, or that of another device. A trial that was stopped early has the score of its last epoch. No "
    "test sample was used."
)


def called(settings: Mapping[str, float]) -> str:
    """A trial's name, which also names a folder: ``rho=0.1,alpha=0.5``."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items())


def outcome(trial: FrozenTrial) -> str:
    """A line about a trial that has ended."""
    about = trial.user_attrs
    if "failed" in about:
        return f"{called(trial.params)}: failed: {about['failed']}"
    if trial.state.name == "PRUNED":
        return f"{called(trial.params)}: stopped early"
    score = Score(**about["score"])
    return f"{called(trial.params)}: {score.name} {_figure(about['scores'], score)} {score.unit}".rstrip()


def completed(study: Study) -> list[FrozenTrial]:
    """The trials that ran to their end, best first. Of equal ones, the first."""
    ended = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    return sorted(ended, key=lambda trial: -(trial.value or 0.0))


def text(study: Study, screen: Screen | None = None, *, verbose: bool = False) -> str:
    """For a terminal: every trial, best first, the recommended settings and the command."""
    rule = [wrapped(RULE, screen)] if verbose else []
    command = [] if unfitted(study) else [f"To train with these settings:\n{train_command(study)}"]
    return "\n\n".join([to_text(table(study), screen), *rule, wrapped(recommendation(study), screen), *command])


def table(study: Study) -> Table:
    """Every trial: the completed ones by score, then those that were stopped or failed."""
    best, score = completed(study), _score(study)
    known = [trial.params for trial in best]
    rest = {str(t.params): t for t in study.trials if t.params not in known}  # the last of several attempts
    digits = seconds_digits([trial.user_attrs["seconds"] for trial in best])
    lines = []
    for trial in (*best, *rest.values()):
        about = trial.user_attrs
        figure = _figure(about["scores"], score) if "scores" in about else about.get("failed", NONE)
        numbers = [f"{value:g}" for value in trial.params.values()]
        cost = [times(about["cost"]), show(about["seconds"], digits)] if "cost" in about else [NONE, NONE]
        lines.append([*numbers, len(trial.intermediate_values) or NONE, figure, *cost])
    return Table.of([*study.trials[0].params, "Epochs", _title(score), "Cost", "Time (s)"], lines, left=())


def unfitted(study: Study) -> bool:
    """Whether the model has not fitted the data in any trial, so that the best score means nothing."""
    return all(trial.user_attrs.get("unfitted", False) for trial in completed(study))


def recommendation(study: Study) -> str:
    """The best settings, with their score and what it was measured on."""
    if unfitted(study):
        return (
            "No settings are recommended: the model has not fitted the data in any trial. Train longer, or search for "
            "the learning rate first: --over lr=0.01,0.03,0.1."
        )
    best, score = completed(study)[0], _score(study)
    scores = best.user_attrs["scores"]
    flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in best.params.items())
    part = f"{100 * study.user_attrs['settings']['validation']:g} % of the training samples"
    seeds = "one seed" if len(scores) == 1 else f"{len(scores)} seeds"
    return f"Best: {flags} ({score.name} {_figure(scores, score)} {score.unit}, on {part}, {seeds})."


def train_command(study: Study) -> str:
    """The command that trains with the best settings, on all training samples."""
    about = study.user_attrs
    given = {name: value for name, value in about["given"].items() if name != "validation"}
    always = {name: about["settings"][name] for name in ("data", "model", "method", "policy", "epochs")}
    words = ["ausam", "train"]
    for name, value in {**always, **given, **completed(study)[0].params, "out": f"{about['out']}/best"}.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not False:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def _chart(study: Study) -> Markup | str:
    """The score of the completed trials against one or two settings. More than two are for the table alone."""
    trials, score = completed(study), _score(study)
    varied = [name for name in trials[0].params if len({trial.params[name] for trial in trials}) > 1]
    figure = Field("score", _title(score), f".{decimals(score.unit)}f")
    rows = [
        {**trial.params, "score": fmean(trial.user_attrs["scores"]), "of": study.user_attrs["settings"]["method"]}
        for trial in trials
    ]
    axes = [Field(name, name, "~g") for name in varied]
    if len(axes) == 2:
        note = "Empty squares: trials that were stopped early."
        return html.chart(charts.heat(rows, axes[0], axes[1], figure, text=True), figure.title, note)
    if len(axes) != 1:
        return ""
    tried = sorted(row[varied[0]] for row in rows)
    log = "x" if tried[0] > 0 and tried[-1] >= 4 * tried[0] else ""  # such values double, or grow tenfold
    spec = charts.lines(rows, axes[0], figure, Field("of", "method"), [axes[0], figure], log=log)
    return html.chart(spec, f"Score against {varied[0]}")


def render(study: Study) -> str:
    """The page. It fetches nothing."""
    about = study.user_attrs["settings"]
    title = f"{about['data']}: search for settings"
    setting = f"{about['method']} + {about['policy']}, {about['model']}, up to {about['epochs']} epochs"
    body: list[Markup | str] = [html.heading(title, 1), html.paragraph(setting, "soft")]
    if completed(study):
        body += [html.paragraph(recommendation(study), "open" if unfitted(study) else "lead")]
        if not unfitted(study):
            body += [html.paragraph("To train with these settings:"), html.code(train_command(study))]
        body += [to_html(table(study)), html.paragraph(RULE, "note"), _chart(study)]
    body += [html.details("How it was made", [html.code(study.user_attrs["command"])])]
    return html.page(title, body, width=62)


def _score(study: Study) -> Score:
    """The kind of score that the trials have."""
    return Score(**completed(study)[0].user_attrs["score"])


def _title(score: Score) -> str:
    unit = f" ({score.unit})" if score.unit else ""
    return f"{measured_on(score.name).capitalize()}{unit}"


def _figure(scores: Sequence[float], score: Score) -> str:
    return show(fmean(scores), decimals(score.unit), stdev(scores) if len(scores) > 1 else None)
