"""Findings follow the figures: reversed figures give the opposite finding."""

import math
import re
from dataclasses import replace

from ausam.diagnostics import Eigenvalues, Group, Sharpness, Slice, StepGeometry, Surface, Trace
from ausam_lab.report import text
from ausam_lab.report.pages import diagnosis as findings
from ausam_lab.report.pages.diagnosis import (
    GeometryAt,
    GeometryResult,
    HessianResult,
    LandscapeResult,
    SelectionResult,
    SharpnessResult,
)
from ausam_lab.report.pages.flatness import Fit, FlatRun, sentences


def said(sentences):
    findings = list(sentences)
    return " ".join(f.text for f in findings), [f.holds for f in findings]


def a_sharpness(worst, m=None, loss=0.5):
    return Sharpness((0.1, 0.2, 0.4), worst, (0.001, 0.002, 0.003), (0.0, 0.0, 0.0), loss, m, False, 64)


def test_flatness_of_one_run():
    eigen = Eigenvalues((4.0, 1.0), (0.1, 0.1), False, 60, 64)
    words, _ = said(findings.hessian_sentences(HessianResult(eigen, Trace(10.0, 0.5, 32, 64))))
    assert "4, 1; its trace is 10 ± 0.5" in words
    assert "has not converged" in words
    assert "account for 50 % of the trace" in words
    whole, groups = a_sharpness((0.1, 0.4, 1.6)), a_sharpness((0.2, 0.8, 1.8), m=32)
    words, _ = said(findings.sharpness_sentences(SharpnessResult(whole, groups, whole)))
    assert "rises from 0.5 by up to 0.4" in words
    assert "2 times as much." in words
    assert "radius to the power 2.0: closer to a bowl" in words
    steep = a_sharpness((0.2, 0.4, 0.8))
    words, _ = said(findings.sharpness_sentences(SharpnessResult(steep, a_sharpness((0.1, 0.2, 0.8), m=32), steep)))
    assert "closer to a slope" in words
    assert "the ascent missed some" in words


def test_landscape():
    line, plane = Slice((-1.0, 0.0, 1.0), (2.0, 0.5, 3.0), 64), Surface((0.0,), ((0.5,),), 64)
    words, _ = said(
        findings.landscape_sentences(LandscapeResult(line, plane, 0, Slice((0.0, 0.5, 1.0), (2.0, 2.5, 0.5), 64)))
    )
    assert "The weights are the lowest point" in words
    assert "from the initial weights to the last weights, the loss goes from 2 to 0.5 over a barrier of 0.5" in words
    line = Slice((-1.0, 0.0, 1.0), (0.1, 0.5, 3.0), 64)
    words, _ = said(
        findings.landscape_sentences(LandscapeResult(line, plane, 3, Slice((0.0, 0.5, 1.0), (2.0, 1.0, 0.5), 64)))
    )
    assert "not the lowest point" in words
    assert "from epoch 3" in words
    assert "without a barrier" in words


def test_numbers_are_written_as_people_do():
    assert [text.number(v) for v in (0.00154, 5.0, 28.5, 999.4, 1012.3, 1e12)] == [
        "0.00154",
        "5",
        "28.5",
        "999",
        "1,012",
        "1e+12",
    ]
    assert [text.percent(v) for v in (0.0086, 0.0994, 0.42, 1.07)] == ["0.86 %", "9.9 %", "42 %", "107 %"]


def test_geometry():
    steps = [StepGeometry(1.0, 1.2, c, 1.1, 0.1, 0.5, 0.6, r) for c, r in ((0.7, -0.1), (0.95, 0.74), (0.8, math.nan))]
    words, _ = said(findings.geometry_sentences(GeometryResult(tuple(GeometryAt(i, s) for i, s in enumerate(steps)))))
    assert "is 0.70 to 0.95" in words
    assert "lowers the loss 1.10 times as much" in words
    assert "(Spearman) of −0.10 to 0.74" in words.replace("-0.10", "−0.10")


def test_selection():
    groups = {"label": (Group("clean", 80, 10.0, 0.9), Group("wrong", 20, 15.0, 1.4))}
    one = SelectionResult(100, 30, 3, 11.0, 1, 28, 0.92, 0, 9, False, groups)
    words, _ = said(findings.selection_sentences(one))
    assert "1.50 times as often as samples with a correct label: the run prefers wrong labels" in words
    assert "9 periods of 3 epochs" in words
    assert "between 1 and 28. The effective" in words
    assert "0 and 28, and 2 samples had none." in said(findings.selection_sentences(replace(one, fewest=0, never=2)))[0]
    words, _ = said(findings.selection_sentences(replace(one, period=1, worst_gap=0, scored=True, groups={})))
    assert "Every sample was visited in every epoch." in words
    assert "11.0 scored visits" in words
    assert "longest" not in said(findings.selection_sentences(replace(one, worst_gap=None)))[0]


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
    findings = list(sentences(runs))
    assert findings[0].text == "SAM's minimum is flatter than SGD's by every measure with each of 2 seeds."
    findings = list(sentences([flat("sgd", 0, 1.0), flat("sam", 0, 2.0)]))
    assert "SAM's minimum is not flatter than SGD's" in findings[0].text
    assert "One seed cannot separate a difference from chance." in findings[0].text
    mixed = flat("sam", 0, 2.0)
    mixed = replace(mixed, trace=Trace(0.5, 0.1, 32, 64))
    findings = list(sentences([flat("sgd", 0, 1.0), mixed]))
    assert "is flatter than SGD's by 1 of 5 measures, but not by the largest eigenvalue, " in findings[0].text
    findings = list(sentences([*runs, flat("sgd", 2, 1.0), flat("sam", 2, 2.0)]))
    assert findings[0].text == "SAM's minimum is not flatter than SGD's."


def test_how_well_each_has_fitted():
    first, second = flat("sgd", 0, 5.0), flat("sam", 0, 1.0)
    text = list(sentences([first, replace(second, fit=Fit(0.7, 0.05))]))[-1].text
    assert text == (
        "Samples that are given their training label: SGD 80 %, SAM 70 %. "
        "Of those with a wrong label: SGD 10 %, SAM 5 %."
    )
    assert "wrong" not in list(sentences([replace(first, fit=Fit(0.8, None))]))[-1].text


def test_a_seed_that_only_one_has_is_not_compared():
    findings = list(sentences([flat("sgd", 0, 1.0), flat("sam", 1, 2.0)]))
    assert not any("minimum" in f.text for f in findings)


def test_a_negative_correlation_is_on_the_chart():
    step = StepGeometry(1.0, 1.0, -0.2, 1.1, 0.1, 0.5, 0.6, -0.3)
    rows = tuple(GeometryAt(i, replace(step, loss_rank=rank)) for i, rank in enumerate((0.2, -0.3)))
    for picture in findings.SECTIONS["geometry"].charts(GeometryResult(rows)):
        begins = [float(at) for at in re.findall(r"'domainMin': ([-\d.]+)", str(picture.spec))]
        assert begins
        assert max(begins) <= -0.2
