"""What the runs of a comparison say about their data: a section of its page, and a sentence for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from ausam_lab.records.comparison import Comparison, Row
from ausam_lab.records.run import Findings
from ausam_lab.report import html
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import NONE, capital

if TYPE_CHECKING:
    from markupsafe import Markup

Links = Mapping[tuple[str, int], str]  # from a page to its runs, by name and seed: the audit page, or the folder
SEE_ALL = (
    "A seed leads to the run's audit page, or to its folder if it has none yet: ausam audit FOLDER makes one, with a "
    "ranked list to review. Each seed may have other wrong labels."
)


def representative_run(comparison: Comparison) -> tuple[Row, int, Findings] | None:
    """The run that describes the data: of the best row that has fitted them, the first seed; None if no run can."""
    known = {(r.name, r.run.seed): r.run.audit for r in comparison.runs}
    for row in sorted(comparison.rows, key=lambda row: (row.underfits, -row.merit)):
        for seed in row.seeds:
            if (findings := known.get((row.name, seed))) is not None:
                return row, seed, findings
    return None


def sentence(comparison: Comparison) -> str:
    """The verdict on the data; empty if no run can say anything, or none has fitted them."""
    run = representative_run(comparison)
    if run is None or run[2].unfitted:
        return ""
    row, seed, findings = run
    return f"The data, by {row.label} with seed {seed}: {' '.join(findings.sentences)}"


def fragments(comparison: Comparison, links: Links) -> Iterator[Markup]:
    """The section: the verdict, and what each row says."""
    lines = []
    for row in sorted(comparison.rows, key=lambda row: -row.merit):
        audits = {r.run.seed: r.run.audit for r in comparison.runs if r.name == row.name and r.run.audit is not None}
        if audits:
            kinds = ", ".join(dict.fromkeys(capital(a.kind) for a in audits.values()))
            fitted = [a.flagged for a in audits.values() if not a.unfitted]  # the others flag no label
            runs = html.links({str(seed): links.get((row.name, seed), "") for seed in audits})
            lines.append([row.label, kinds, f"{fmean(fitted):,.0f}" if fitted else NONE, runs])
    if lines:
        yield html.heading("What the training says about the data")
        if said := sentence(comparison):
            yield html.paragraph(said)
        yield to_html(Table.of(["Method", "Verdict", "Flagged labels", "Seeds"], lines, left=(0, 1)))
        yield html.paragraph(SEE_ALL, "note")
