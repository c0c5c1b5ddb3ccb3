"""One verdict for every report."""

from ausam_lab.records.comparison import Difference
from ausam_lab.report.verdict import Verdict, interval, p_text, verdict


def test_the_truth_table():
    cases = {
        Verdict.UNFINISHED: [None],
        Verdict.ONE_SEED: [Difference(1, 0.5), Difference(1, 0.0)],
        # several seeds whose differences are equal have no p, and are not one seed
        Verdict.UNCLEAR: [Difference(2, 0.5), Difference(3, 0.0), Difference(3, 0.5, -0.1, 1.1, 0.08)],
        Verdict.BETTER: [Difference(3, 0.5, 0.1, 0.9, 0.05)],
        Verdict.WORSE: [Difference(3, -0.5, -0.9, -0.1, 0.01)],
    }
    turned = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    for expected, differences in cases.items():
        for difference in differences:
            assert verdict(difference) is expected
            assert verdict(difference, lower_is_better=True) is turned.get(expected, expected)


def test_the_figures_behind_it():
    assert interval(Difference(3, -0.5, -0.9, -0.1, 0.01), 1) == "−0.5 [−0.9, −0.1]*"
    assert interval(Difference(2, 0.5)) == "+0.50"
    assert interval(None) == p_text(None) == p_text(Difference(2, 0.5)) == "–"
    assert p_text(Difference(3, 0.5, 0.1, 0.9, 1e-9)) == "0.001"
