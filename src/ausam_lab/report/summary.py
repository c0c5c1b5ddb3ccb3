"""The summary of a comparison: its table as text, and a headline that claims no more than the figures show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from ausam_lab.config import Config
from ausam_lab.records.comparison import Comparison, Difference, Row
from ausam_lab.records.run import measured_on
from ausam_lab.report.statistics import BETTER, UNCLEAR, UNFINISHED, WORSE, holm, interval, p_text, paired, standing
from ausam_lab.report.table import Line, Section, Table, marked, to_text
from ausam_lab.report.text import SKIPPED_BECAUSE, capital, join, number, show, wrapped

SAME_COST = 0.2  # a baseline has "about the same cost" if its samples differ by at most this fraction
SPREAD = "± is the standard deviation over seeds."
RULE = "Cost counts samples in forward and backward passes. Plain SGD has 1x."
AGAINST_SAM = (
    "The difference from SAM is paired over seeds, with its 95 % interval. A star: significant at 5 % (Holm's "
    "correction over the rows)."
)
PROBABILITIES = "NLL is the mean negative log-likelihood of the right class, ECE the expected calibration error."
# what the further scores mean, by the name of the score
FURTHER_SCORES = {
    "accuracy": "Balanced accuracy is the mean over the classes. Head, middle and tail are the first, middle and last "
    "third of the classes, of which later ones have fewer training samples.",
    "PCKh@0.5": "Score of each group of joints.",
}


def metric(comparison: Comparison) -> str:
    """The score of its runs: "accuracy", "PCKh@0.5"."""
    return comparison.rows[0].metric if comparison.rows else "accuracy"


def by_score(comparison: Comparison) -> list[Row]:
    """The rows, best first. Those that have diverged last."""
    return sorted(comparison.rows, key=lambda row: (row.diverges, -row.mean))


def featured_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that a comparison is about: with corrected labels. Else the user's own, then those that use scores."""
    corrected = [row for row in rows if row.kind == "corrected"]
    return corrected or [row for kind in ("own", "contender") for row in rows if row.kind == kind]


def cost(comparison: Comparison, row: Row) -> float:
    """The samples in forward and backward passes, in units of plain SGD, which passes each sample once per epoch."""
    sgd = 2 * comparison.config.epochs * comparison.runs[0].run.data.train
    return (row.samples_forward + row.samples_backward) / sgd


def cost_text(comparison: Comparison, row: Row) -> str:
    """The cost as a multiple of SGD's: ``1x``, ``1.3x``."""
    return times(cost(comparison, row))


def times(multiple: float) -> str:
    """A multiple of SGD's: ``1x``, ``1.3x``."""
    return f"{multiple:.2g}x" if multiple < 0.1 else f"{round(multiple, 1):g}x"


def cost_words(comparison: Comparison, row: Row) -> str:
    """The cost in a sentence: ``SGD's cost``, ``2x SGD's cost``."""
    text = cost_text(comparison, row)
    return "SGD's cost" if text == "1x" else f"{text} SGD's cost"


def headline(comparison: Comparison) -> str:
    """At most three sentences: the best row and its cost, our row, and what the seeds cannot tell.

    Empty if every row has diverged: then there is no best one.
    """
    rows, mine = by_score(comparison), featured_rows(comparison.rows)
    text = best_text(comparison)
    if len(rows) < 2 or not text:
        return text
    best = rows[0]
    if not mine:
        known = [row for row in rows[1:] if row.name in ("sgd", "sam") and _score(row) != _score(best)]
        return " ".join([text, *(f"{row.label} reaches {_score(row)}." for row in known)])
    row = mine[0]
    if row.kind == "corrected":
        gains = compare_rows(comparison)
        return " ".join([text, *(f"From {a.label} to {b.label}: {interval(d)}." for b, a, d in gains)])
    rivals: dict[str, list[str]] = {BETTER: [], WORSE: [], UNCLEAR: [], UNFINISHED: []}
    for one, rival, difference in compare_rows(comparison):
        if one is row:
            rivals[standing(difference)].append(rival.label)
    than = [f"{kind} than {join(rivals[kind])}" for kind in (BETTER, WORSE) if rivals[kind]]
    if row is not best:
        text += f" {', '.join([f'{row.label} reaches {_score(row)} at {cost_words(comparison, row)}', *than])}."
    elif than:
        text += f" It is {join(than)}."
    if unclear := rivals[UNCLEAR]:
        text += f" Too few seeds to tell {row.label} from {join(unclear)}."
    return text


def best_text(comparison: Comparison) -> str:
    """The best row, whoever it is, or the rows that share the best score, and their cost."""
    if not comparison.rows:
        return "No run has finished yet."
    best, *others = by_score(comparison)
    if best.diverges:
        return ""
    name = measured_on(metric(comparison))
    if not others:
        return f"{best.label} reaches {_score(best)} {name} at {cost_words(comparison, best)}."
    shared = [best, *(row for row in others if _score(row) == _score(best))]
    costs = list(dict.fromkeys(cost_words(comparison, row) for row in shared))
    have = "has" if len(shared) == 1 else "share"
    at = f", at {costs[0]}" if len(costs) == 1 else ""
    return f"{join([row.label for row in shared])} {have} the best {name}: {_score(best)}{at}."


def compare_rows(comparison: Comparison) -> list[tuple[Row, Row, Difference | None]]:
    """The first two featured rows, each against SAM, SGD and the baselines of its cost. The user's own against all.

    A row with corrected labels is compared with the same row before the correction alone. Holm's correction covers all
    of these differences, because they are read together.
    """
    featured = featured_rows(comparison.rows)
    mine = [row for i, row in enumerate(featured) if i < 2 or row.kind == "corrected"]
    asked = [(row, rival) for row in mine for rival in _rivals(comparison, row) if rival is not row]
    return [(*pair, d) for pair, d in zip(asked, holm([paired(*pair) for pair in asked]), strict=True)]


def _rivals(comparison: Comparison, row: Row) -> list[Row]:
    """SAM, SGD, the baselines of about the same cost, and the library's contenders if the row is the user's own."""
    rows = comparison.rows
    if row.kind == "corrected":
        mine = _without_labels(comparison, row)
        return [known for known in rows if known.kind != row.kind and _without_labels(comparison, known) == mine]
    first = [known for name in ("sam", "sgd") for known in rows if known.name == name]
    scored = [known for known in rows if known.kind == "contender"] if row.kind == "own" else []
    return [*first, *same_cost(comparison, row), *scored]


def _without_labels(comparison: Comparison, row: Row) -> Config:
    """The settings of a row, but for its labels."""
    config = next(named.run.config for named in comparison.runs if named.name == row.name)
    return replace(config, labels="", label="", kind="", seed=0)


def same_cost(comparison: Comparison, row: Row) -> list[Row]:
    """The baselines of about the same cost: fewer epochs, smaller batches, or a random subset."""
    mine = cost(comparison, row)
    baselines = [other for other in comparison.rows if other.kind == "baseline"]
    return [other for other in baselines if abs(cost(comparison, other) - mine) <= SAME_COST * mine]


def verdict_table(comparison: Comparison) -> tuple[Table, str]:
    """The figures behind the headline, each featured row against its rivals, and how to read them."""
    compared, sections = compare_rows(comparison), dict[str, list[Line]]()
    for row, rival, difference in compared:
        cells = (rival.label, standing(difference), interval(difference), p_text(difference))
        sections.setdefault(f"{row.label} against", []).append(Line(cells))
    lines = tuple(Section(tuple(lines), title) for title, lines in sections.items())
    known = sum(difference is not None and difference.p is not None for *_, difference in compared)
    notes = [f"p and verdict are corrected for {known} comparisons (Holm), intervals are not."] if known > 1 else []
    mine = [row for row in featured_rows(comparison.rows)[:1] if row.kind != "corrected"]
    alone = [row.label for row in mine if not same_cost(comparison, row)]
    notes += [f"No baseline has the cost of {label}. Add sam+random or sgd@1x0.5." for label in alone]
    return Table(("", "Verdict", "Difference [95 %]", "p"), lines, left=(0, 1)), " ".join(notes)


def underfitting(rows: Sequence[Row]) -> str:
    """What to do first about rows that have diverged or have not fitted their data. Empty if all have."""
    diverged = [row for row in rows if row.diverges]
    rest = [row for row in rows if row.underfits and row not in diverged]
    texts = []
    if diverged:
        texts.append(f"{join([row.label for row in diverged])} diverged. Lower the learning rate.")
    if rest:
        which = "" if len(rest) == len(rows) else f"{join([row.label for row in rest])}: "
        texts.append(capital(f"{which}your model has not fitted the data. Train longer, or use smaller batches."))
        texts.append("Until then, rows may differ only in how fast they learn.")
    return " ".join(texts)


def _score(row: Row) -> str:
    """The mean only, because the table has the spread."""
    return f"{row.mean:.2f} %"


def time_column(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """The head and the cells of the time of training: CPU time if it is known, in multiples of SGD's if SGD is there.

    Wall time depends on what else the machine does, so it is shown only for other devices than the CPU.
    """
    on_cpu = all(row.cpu_seconds for row in rows)
    spent = [fmean(row.cpu_seconds if on_cpu else row.seconds) for row in rows]
    title = "CPU time" if on_cpu else "Time"
    for row, of_sgd in zip(rows, spent, strict=True):
        if row.name == "sgd":
            return title, [times(seconds / of_sgd) for seconds in spent]
    return f"{title} (s)", list(map(number, spent))


def score_table(comparison: Comparison) -> Table:
    """Every row, best first: score, cost, time, difference from SAM."""
    rows = by_score(comparison)
    time, spent = time_column(rows)
    columns: dict[str, list[object]] = {
        "Method": [row.label for row in rows],
        f"{capital(metric(comparison))} %": [show(row.mean, 2, row.std) for row in rows],
        "Cost": [cost_text(comparison, row) for row in rows],
        time: [*spent],
    }
    if any(row.against_sam for row in rows):
        columns["From SAM [95 %]"] = [interval(row.against_sam) for row in rows]
    if len({row.n for row in rows}) > 1:
        columns["Seeds"] = [row.n for row in rows]
    mine = featured_rows(rows)
    lines = [
        Line(cells, style="ours" if row in mine else "")
        for row, cells in zip(rows, zip(*columns.values(), strict=True), strict=True)
    ]
    scores = [None if row.diverges else round(row.mean, 2) for row in rows]
    lines = marked(marked(lines, 0, scores), 1, scores)
    return Table(tuple(columns), (Section(tuple(lines)),))


def further_table(comparison: Comparison) -> tuple[Table, str]:
    """The further figures that all rows have, and what they mean: settings, seconds, likelihood, calibration, parts.

    The parts of a score are balanced accuracy or groups of joints.
    """
    rows = by_score(comparison)
    columns = {
        "Method": [row.label for row in rows],
        "Settings": [row.pair for row in rows],
        "Wall time (s)": [number(row.mean_seconds) for row in rows],
    }
    notes = ""
    if all(row.nlls for row in rows):
        columns["NLL"] = [show(fmean(row.nlls), 3) for row in rows]
        columns["ECE %"] = [show(fmean(row.calibration_errors), 1) for row in rows]
        notes = PROBABILITIES
    parts = [name for name in rows[0].parts if all(name in row.parts for row in rows)]
    columns |= {capital(name): [show(row.parts[name], 2) for row in rows] for name in parts}
    if parts:
        notes = f"{notes} {FURTHER_SCORES.get(metric(comparison), '')}".strip()
    return Table.of(tuple(columns), zip(*columns.values(), strict=True), left=(0, 1)), notes


def notes(comparison: Comparison) -> str:
    """How to read the table of scores."""
    spread = [SPREAD] if any(row.n > 1 for row in comparison.rows) else []
    against = [AGAINST_SAM] if any(row.against_sam for row in comparison.rows) else []
    return " ".join([*spread, RULE, *against])


def text(comparison: Comparison, columns: int | None = None, *, verbose: bool = False) -> str:
    """For a terminal: the table, the headline, what the runs say about the data. With ``verbose``, how to read it."""
    said = [
        notes(comparison) if verbose else "",
        *skipped_notes(comparison.rows),
        underfitting(comparison.rows),
        headline(comparison),
        "" if comparison.complete else f"Unfinished: {len(comparison.runs)} runs so far.",
        about_data(comparison),
        "" if verbose else "--verbose explains the table.",
    ]
    paragraphs = [wrapped(paragraph, columns) for paragraph in said if paragraph]
    return "\n\n".join([to_text(score_table(comparison), columns), *paragraphs])


def about_data(comparison: Comparison) -> str:
    """What the best row that has fitted the data says about them, with its first seed. Empty if no run can."""
    known = {(r.name, r.run.seed): r.run.audit for r in comparison.runs}
    for row in by_score(comparison):
        for seed in row.seeds:
            findings = known.get((row.name, seed))
            if findings is not None and not row.underfits and not findings.unfitted:
                return f"The data, by {row.label} with seed {seed}: {' '.join(findings.sentences)}"
    return ""


def skipped_notes(rows: Iterable[Row]) -> list[str]:
    """A line under a table for each row with skipped steps."""
    return [
        f"{row.label}: {row.skipped:,} steps skipped in {row.n} run{'s' if row.n > 1 else ''}, {SKIPPED_BECAUSE}."
        for row in rows
        if row.skipped
    ]
