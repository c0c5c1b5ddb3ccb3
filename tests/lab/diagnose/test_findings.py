"""Findings follow the figures: reversed figures give the opposite finding."""

from dataclasses import replace

import pytest

from ausam.diagnostics import (
    Agreement,
    Eigenvalues,
    Group,
    Sharpness,
    Slice,
    StepGeometry,
    Surface,
    Trace,
)
from ausam.lab.diagnose import findings
from ausam.lab.diagnose.compare import sentences
from ausam.lab.diagnose.records import (
    Fit,
    FlatRun,
    GeometryAt,
    GeometryPart,
    HessianPart,
    LandscapePart,
    Lemma1Part,
    Lemma1Row,
    SelectionPart,
    SharpnessPart,
    Theorem1At,
    Theorem1Of,
    Theorem1Part,
    Theorem2Part,
    Theorem4At,
    Theorem4Of,
    Theorem4Part,
)
from ausam.paper.theory import Theorem1Summary, Theorem2

CLOSE, FAR = Agreement(1.0, 0.9, 0.02, 0.99, 64), Agreement(0.5, 0.3, 0.77, 0.23, 64)


def said(sentences):
    found = list(sentences)
    return " ".join(f.text for f in found), [f.holds for f in found]


def test_lemma1():
    row = Lemma1Row(8, FAR, CLOSE, 0.25, CLOSE, None)
    text, holds = said(findings.lemma1(Lemma1Part((row,), ())))
    assert "After epoch 8, DLP / rho is on average 23 % of the gradient norm" in text
    assert "its error is 77 % of the norm" in text
    assert "DLP measures that projection" in text
    assert "rank them with 0.90 after epoch 8, better than one fresh measurement" in text
    assert holds[0] is False
    text, holds = said(findings.lemma1(Lemma1Part((replace(row, norm=CLOSE, projection=FAR, table=FAR),), ())))
    assert "its error is 2 % of the norm" in text
    assert "curvature contributes as well" in text
    assert "no better than one" in text
    assert holds[0] is True


def a_summary(fails=0.0, difference=0.1, corrected=0.0):
    return Theorem1Summary(4, fails, fails, corrected, difference, 1.0, 1.0, 2.0, 0.1, 0.1)


def theorem1(**summaries):
    return Theorem1Part((Theorem1At(3, tuple(Theorem1Of(k, v) for k, v in summaries.items())),))


def test_theorem1():
    found = theorem1(AUSampling=a_summary(0.5, 0.3), Random=a_summary(0.0, 0.1), TopLoss=a_summary(1.0, 0.4))
    text, holds = said(findings.theorem1(found))
    assert "exceeds the paper's bound in 2 of 4 mini-batches" in text
    assert "AUSampling 50 %, Random 0 %, TopLoss 100 %" in text
    assert "Random preserves the sharpness of the mini-batch best" in text
    assert "is not the best choice" in text
    assert holds == [False, True, False]
    found = theorem1(AUSampling=a_summary(0.0, 0.1, corrected=0.25), Random=a_summary(0.0, 0.2))
    text, holds = said(findings.theorem1(found))
    assert "exceeds the paper's bound in 0 of 4 mini-batches" in text
    assert "is the best choice" in text
    assert "The corrected bound fails in up to 25 %" in text
    assert holds == [True, False, True]


def test_theorem2():
    one = Theorem2(
        (2, 3), (0.1, 0.2), (0.3, 0.4), (0.1, 0.16), 5.0, (1.0, 2.0), (0.5, 4.0), 1.0, 1.0, 5, False, None, True, 64
    )
    text, holds = said(findings.theorem2(Theorem2Part((0, 2, 4), one)))
    assert "so it does not apply" in text
    assert "differs from its norm after epoch 4 by 16 % on average" in text
    assert "10 times the worst deviation" in text
    assert holds == [None, None, True]
    one = replace(one, applies=True, holds=False, path_bound=(0.2, 4.0))
    text, holds = said(findings.theorem2(Theorem2Part((0, 2, 4), one)))
    assert "above the bound of 5" in text
    assert holds == [False, None, False]


def a_bias(relative, paper=1.0):
    return Theorem4Of("AUSampling", True, 2, 1.0, relative, relative, 0.0, 0.95, 0.1, 0.2, 0.3, paper, 1.0)


@pytest.mark.parametrize(
    ("first", "last", "vanishes"), [(0.18, 0.42, False), (0.4, 0.3, False), (0.4, 0.1, True), (0.01, 0.04, True)]
)
def test_theorem4(first, last, vanishes):
    rows = (Theorem4At(3, (a_bias(first),)), Theorem4At(30, (a_bias(last, paper=0.5),)))
    text, holds = said(findings.theorem4(Theorem4Part(rows)))
    assert ("it vanishes." in text) is vanishes
    assert ("it does not vanish." in text) is not vanishes
    assert "holds in 75 % of AUSampling's mini-batches" in text
    assert (holds[0], holds[-1]) == (vanishes, False)
    text, holds = said(findings.theorem4(Theorem4Part(rows[1:])))
    assert "One epoch cannot show whether it vanishes" in text
    assert holds[0] is None


def a_sharpness(worst, m=None, loss=0.5):
    return Sharpness((0.1, 0.2, 0.4), worst, (0.001, 0.002, 0.003), (0.0, 0.0, 0.0), loss, m, False, 64)


def test_flatness_of_one_run():
    eigen = Eigenvalues((4.0, 1.0), (0.1, 0.1), False, 60, 64)
    text, _ = said(findings.hessian(HessianPart(eigen, Trace(10.0, 0.5, 32, 64))))
    assert "4, 1; its trace is 10 ± 0.5" in text
    assert "has not converged" in text
    assert "account for 50 % of the trace" in text
    whole, groups = a_sharpness((0.1, 0.4, 1.6)), a_sharpness((0.2, 0.8, 1.8), m=32)
    text, _ = said(findings.sharpness(SharpnessPart(whole, groups, whole)))
    assert "rises from 0.5 by up to 0.4" in text
    assert "2 times as much." in text
    assert "radius to the power 2.0: closer to a bowl" in text
    steep = a_sharpness((0.2, 0.4, 0.8))
    text, _ = said(findings.sharpness(SharpnessPart(steep, a_sharpness((0.1, 0.2, 0.8), m=32), steep)))
    assert "closer to a slope" in text
    assert "the ascent missed some" in text


def test_landscape():
    line, plane = Slice((-1.0, 0.0, 1.0), (2.0, 0.5, 3.0), 64), Surface((0.0,), ((0.5,),), 64)
    text, _ = said(findings.landscape(LandscapePart(line, plane, 0, Slice((0.0, 0.5, 1.0), (2.0, 2.5, 0.5), 64))))
    assert "The weights are the lowest point" in text
    assert "from the initial weights to the last weights, the loss goes from 2 to 0.5 over a barrier of 0.5" in text
    line = Slice((-1.0, 0.0, 1.0), (0.1, 0.5, 3.0), 64)
    text, _ = said(findings.landscape(LandscapePart(line, plane, 3, Slice((0.0, 0.5, 1.0), (2.0, 1.0, 0.5), 64))))
    assert "not the lowest point" in text
    assert "from epoch 3" in text
    assert "without a barrier" in text


def test_numbers_are_written_as_people_do():
    assert [findings.number(v) for v in (0.00154, 5.0, 28.5, 999.4, 1012.3, 1e12)] == [
        "0.00154",
        "5",
        "28.5",
        "999",
        "1,012",
        "1e+12",
    ]
    assert [findings.percent(v) for v in (0.0086, 0.0994, 0.42, 1.07)] == ["0.86 %", "9.9 %", "42 %", "107 %"]


def test_geometry():
    steps = [StepGeometry(1.0, 1.2, c, 1.1, 0.1, 0.5, 0.6) for c in (0.7, 0.95)]
    text, _ = said(findings.geometry(GeometryPart(tuple(GeometryAt(i, s) for i, s in enumerate(steps)))))
    assert "is 0.70 to 0.95" in text
    assert "lowers the loss 1.10 times as much" in text


def test_selection():
    groups = {"label": (Group("clean", 80, 10.0, 0.9), Group("wrong", 20, 15.0, 1.4))}
    one = SelectionPart(100, 30, 3, 11.0, 1, 28, 0.92, 0, 9, False, groups)
    text, _ = said(findings.selection(one))
    assert "1.50 times as often as samples with a correct label: the run prefers wrong labels" in text
    assert "9 periods of 3 epochs" in text
    text, _ = said(findings.selection(replace(one, period=1, worst_gap=0, scored=True, groups={})))
    assert "Every sample was visited in every epoch." in text
    assert "11.0 scored visits" in text
    assert "longest" not in said(findings.selection(replace(one, worst_gap=None)))[0]


def flat(name, seed, value):
    sharp = a_sharpness((value, value, value))
    return FlatRun(
        name,
        name.upper(),
        seed,
        30,
        90.0,
        Fit(0.8, 0.1),
        Eigenvalues((value,), (0.0,), True, 60, 64),
        Trace(value, 0.1, 32, 64),
        sharp,
        sharp,
        sharp,
        Slice((0.0,), (0.5,), 64),
    )


def test_whose_minimum_is_flatter():
    runs = [flat("sgd", 0, 5.0), flat("sam", 0, 1.0), flat("sgd", 1, 6.0), flat("sam", 1, 1.2)]
    found = list(sentences(runs))
    assert found[0].text.startswith(
        "SAM's minimum is flatter than SGD's by every measure with each of 2 seeds: "
        "largest eigenvalue 1.1 against 5.5 (20 %); trace"
    )
    assert found[0].holds is True
    found = list(sentences([flat("sgd", 0, 1.0), flat("sam", 0, 2.0)]))
    assert "SAM's minimum is not flatter than SGD's" in found[0].text
    assert "One seed cannot separate a difference from chance." in found[0].text
    assert found[0].holds is False
    assert "worst rise in the adaptive ball 2 against 1" in found[0].text
    mixed = flat("sam", 0, 2.0)
    mixed = replace(mixed, trace=Trace(0.5, 0.1, 32, 64))
    found = list(sentences([flat("sgd", 0, 1.0), mixed]))
    assert "is flatter than SGD's by 1 of 5 measures: " in found[0].text
    found = list(sentences([*runs, flat("sgd", 2, 1.0), flat("sam", 2, 2.0)]))
    assert found[0].text.startswith("SAM's minimum is not flatter than SGD's: ")
    assert "against 4 (35 %, lower with 2 of 3 seeds)" in found[0].text


def test_how_well_each_has_fitted():
    first, second = flat("sgd", 0, 5.0), flat("sam", 0, 1.0)
    text = list(sentences([first, replace(second, fit=Fit(0.7, 0.05))]))[-1].text
    assert text == (
        "Samples that are given their training label: SGD 80 %, SAM 70 %. "
        "Of those with a wrong label: SGD 10 %, SAM 5 %."
    )
    assert "wrong" not in list(sentences([replace(first, fit=Fit(0.8, None))]))[-1].text


def test_a_seed_that_only_one_has_is_not_compared():
    found = list(sentences([flat("sgd", 0, 1.0), flat("sam", 1, 2.0)]))
    assert [f.holds for f in found] == [None, None]
