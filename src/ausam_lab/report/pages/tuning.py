"""The page of a search for settings, tuning.html: what to do next, a chart of one or two settings, every trial."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ausam_lab.report import charts, html
from ausam_lab.report.charts import Field, PlainRow
from ausam_lab.report.table import Table, to_html

SCORE = Field("score", "held-out score (%)", ".2f")


def render(title: str, advice: str, command: str, rows: Sequence[PlainRow], table: Table, rule: str) -> str:
    """The page. It fetches nothing.

    Arguments:
        title: the title.
        advice: what to do next.
        command: the command that does it. May be empty.
        rows: the settings of each trial that ran to its end, and its ``score``.
        table: every trial.
        rule: how the scores were measured.
    """
    body = [html.heading(title, 1), html.paragraph(advice, "lead"), *([html.code(command)] if command else [])]
    return html.page(title, [*body, *_chart(rows), to_html(table), html.paragraph(rule, "note")], width=62)


def _chart(rows: Sequence[PlainRow]) -> list[Markup]:
    """The score against one or two settings. More than two are for the table alone."""
    varied = [name for name in rows[0] if name != "score" and len({row[name] for row in rows}) > 1]
    axes = [Field(name, name, "~g") for name in varied]
    if len(axes) == 2:
        spec = charts.heat(rows, axes[0], axes[1], SCORE)
        return [html.chart(spec, "Score of each trial", "Empty squares: trials that were stopped early.")]
    if len(axes) == 1:
        tried = sorted(row[varied[0]] for row in rows)
        log = tried[0] > 0 and tried[-1] >= 4 * tried[0]  # such values double, or grow tenfold
        every = [{**row, "of": "trials"} for row in rows]
        spec = charts.lines(every, axes[0], SCORE, Field("of", "of"), [axes[0], SCORE], log=log)
        return [html.chart(spec, f"Score against {varied[0]}")]
    return []
