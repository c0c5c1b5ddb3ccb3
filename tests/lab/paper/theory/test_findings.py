"""Findings of the theory follow the figures: reversed figures give the opposite finding."""

from dataclasses import replace

import pytest

from ausam.diagnostics import Agreement
from ausam_lab.paper.theory import Theorem1Summary, Theorem2
from ausam_lab.paper.theory import page as findings
from ausam_lab.paper.theory.page import (
    Lemma1Result,
    Lemma1Row,
    Theorem1At,
    Theorem1Of,
    Theorem1Result,
    Theorem2Result,
    Theorem4At,
    Theorem4Of,
    Theorem4Result,
)

CLOSE, FAR = Agreement(1.0, 0.9, 0.02, 0.99, 64), Agreement(0.5, 0.3, 0.77, 0.23, 64)


def said(sentences):
    findings = list(sentences)
    return " ".join(f.text for f in findings), [f.holds for f in findings]


def test_lemma1():
    row = Lemma1Row(8, FAR, CLOSE, 0.25, CLOSE, None)
    text, holds = said(findings.lemma1_sentences(Lemma1Result((row,), ())))
    assert "After epoch 8, DLP / rho is on average 23 % of the gradient norm" in text
    assert "its error is 77 % of the norm" in text
    assert "DLP measures that projection" in text
    assert "rank them with 0.90 after epoch 8, better than one fresh measurement" in text
    assert holds[0] is False
    text, holds = said(
        findings.lemma1_sentences(Lemma1Result((replace(row, norm=CLOSE, projection=FAR, table=FAR),), ()))
    )
    assert "its error is 2 % of the norm" in text
    assert "curvature contributes as well" in text
    assert "no better than one" in text
    assert holds[0] is True


def a_summary(fails=0.0, difference=0.1, corrected=0.0):
    return Theorem1Summary(4, fails, fails, corrected, difference, 1.0, 1.0, 2.0, 0.1, 0.1)


def theorem1(**summaries):
    return Theorem1Result((Theorem1At(3, tuple(Theorem1Of(k, v) for k, v in summaries.items())),))


def test_theorem1():
    result = theorem1(AUSampling=a_summary(0.5, 0.3), Random=a_summary(0.0, 0.1), TopLoss=a_summary(1.0, 0.4))
    text, holds = said(findings.theorem1_sentences(result))
    assert "exceeds the paper's bound in 2 of 4 mini-batches" in text
    assert "AUSampling 50 %, Random 0 %, TopLoss 100 %" in text
    assert "Random preserves the sharpness of the mini-batch best" in text
    assert "is not the best choice" in text
    assert holds == [False, True, False]
    result = theorem1(AUSampling=a_summary(0.0, 0.1, corrected=0.25), Random=a_summary(0.0, 0.2))
    text, holds = said(findings.theorem1_sentences(result))
    assert "exceeds the paper's bound in 0 of 4 mini-batches" in text
    assert "is the best choice" in text
    assert "The corrected bound fails in up to 25 %" in text
    assert holds == [True, False, True]


def test_theorem2():
    one = Theorem2(
        (2, 3), (0.1, 0.2), (0.3, 0.4), (0.1, 0.16), 5.0, (1.0, 2.0), (0.5, 4.0), 1.0, 1.0, 5, False, None, True, 64
    )
    text, holds = said(findings.theorem2_sentences(Theorem2Result((0, 2, 4), one)))
    assert "so it does not apply" in text
    assert "differs from its norm after epoch 4 by 16 % on average" in text
    assert "10 times the worst deviation" in text
    assert holds == [None, None, True]
    one = replace(one, applies=True, holds=False, path_bound=(0.2, 4.0))
    text, holds = said(findings.theorem2_sentences(Theorem2Result((0, 2, 4), one)))
    assert "above the bound of 5" in text
    assert holds == [False, None, False]


def a_bias(relative, paper=1.0):
    return Theorem4Of("AUSampling", True, 2, 1.0, relative, relative, 0.0, 0.95, 0.1, 0.2, 0.3, paper, 1.0)


@pytest.mark.parametrize(
    ("first", "last", "vanishes"), [(0.18, 0.42, False), (0.4, 0.3, False), (0.4, 0.1, True), (0.01, 0.04, True)]
)
def test_theorem4(first, last, vanishes):
    rows = (Theorem4At(3, (a_bias(first),)), Theorem4At(30, (a_bias(last, paper=0.5),)))
    text, holds = said(findings.theorem4_sentences(Theorem4Result(rows)))
    assert ("it vanishes." in text) is vanishes
    assert ("it does not vanish." in text) is not vanishes
    assert "holds in 75 % of AUSampling's mini-batches" in text
    assert (holds[0], holds[-1]) == (vanishes, False)
    text, holds = said(findings.theorem4_sentences(Theorem4Result(rows[1:])))
    assert "One epoch cannot show whether it vanishes" in text
    assert holds[0] is None
