"""What the runs of a comparison say about their data: a section of its page, and a sentence for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from ausam_lab.records.comparison import Comparison, Row
from ausam_lab.records.run import Findings
from ausam_lab.report import html
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import NONE, capital

if TYPE_CHECKING:
    from markupsafe import Markup

SEE_ALL = "ausam audit, with the folder of a run, shows the flagged samples and writes them to a CSV file."


def representative_run(comparison: Comparison) -> tuple[Row, int, Findings] | None:
    """The run that speaks for the data: of the best row that has fitted them, the first seed; None if no run can."""
    known = {(r.name, r.run.seed): r.run.audit for r in comparison.runs}
    for row in sorted(comparison.rows, key=lambda row: (row.underfits, -row.merit)):
        for seed in row.seeds:
            if (findings := known.get((row.name, seed))) is not None:
                return row, seed, findings
    return None


def sentence(comparison: Comparison) -> str:
    """The verdict on the data; empty if no run can say anything, or none has fitted them."""
    run = representative_run(comparison)
    return "" if run is None or run[2].unfitted else _verdict(*run)


def _verdict(row: Row, seed: int, findings: Findings) -> str:
    return f"The data, by {row.label} with seed {seed}: {' '.join(findings.sentences)}"


def fragments(comparison: Comparison) -> Iterator[Markup]:
    """The section: the verdict, what each row says, and the first flagged samples."""
    run = representative_run(comparison)
    if run is None:
        return
    _, seed, findings = run
    yield html.heading("What the training says about the data", key="data")
    yield html.paragraph(_verdict(*run))
    yield to_html(_rows_table(comparison))
    if findings.first:
        yield html.heading(f"First flagged samples, seed {seed}", 3)
        yield to_html(_suspects_table(findings))
    yield html.paragraph(f"{SEE_ALL} Each seed may have other wrong labels.", "note")


def _rows_table(comparison: Comparison) -> Table:
    lines = []
    for row in comparison.rows:
        audits = [r.run.audit for r in comparison.runs if r.name == row.name and r.run.audit is not None]
        if audits:
            kinds = list(dict.fromkeys(a.kind for a in audits))
            fitted = [a for a in audits if not a.unfitted]  # the others flag no label
            lines.append([row.label, ", ".join(map(capital, kinds)), _flagged(fitted), _mean(audits, "redundant")])
    head = ["Method", "Verdict", "Flagged labels", "Learned early, never forgotten"]
    return Table.of(head, lines, left=(0, 1))


def _mean(audits: Sequence[Findings], name: str) -> str:
    """The mean over seeds, in per cent; a dash without any."""
    return f"{100 * fmean(getattr(a, name) for a in audits):.1f} %" if audits else NONE


def _flagged(audits: Sequence[Findings]) -> str:
    """The mean number over seeds; a dash without any."""
    return f"{fmean(a.flagged for a in audits):,.0f}" if audits else NONE


def _suspects_table(findings: Findings) -> Table:
    lines = [[s.index, s.given, NONE if s.likely is None else s.likely] for s in findings.first]
    return Table.of(["Sample", "Given", "Likely"], lines)
