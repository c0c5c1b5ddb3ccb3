"""Charts from plain rows: what a specification holds."""

import pytest

from ausam_lab.report import charts, html
from ausam_lab.report.charts import Field

X, Y, BY = Field("x", "seconds"), Field("y", "score (%)"), Field("method", "method")
ROWS = [{"method": name, "x": 1.0 + i, "y": 10.0 * i} for i, name in enumerate(("a", "b", "c"))]


def layer(spec, name):
    return next(part for part in spec["layer"] if part["name"] == name)


def test_a_name_has_one_look_in_all_charts_of_a_page():
    curves, marks = charts.lines(ROWS, X, Y, BY, [X]), charts.dots(ROWS, X, BY, [X])
    for spec, name in ((curves, "lines"), (marks, "marks")):
        scale = layer(spec, name)["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True))["b"] == "var(--c1)"


def test_few_places_have_a_tick_each():
    """Vega wrote "1 2 2 3 3" below three epochs."""
    epochs = Field("x", "epoch", "d")
    axis = layer(charts.lines(ROWS, epochs, Y, BY, [X]), "lines")["encoding"]["x"]["axis"]
    assert axis["values"] == [1.0, 2.0, 3.0]


def test_what_a_logarithm_cannot_show_is_left_out():
    rows = [*ROWS, {"method": "d", "x": 0.0, "y": 0.0}]
    assert [r["method"] for r in charts.lines(rows, X, Y, BY, [X], log=True)["data"]["values"]] == ["b", "c"]


@pytest.mark.parametrize(("least", "log"), [(0.0, False), (0.5, True), (1.9, False)])
def test_values_that_differ_widely_have_a_logarithmic_scale(least, log):
    """A legend of close values had no figure on a logarithmic one."""
    rows = [{"x": i, "y": 0, "v": value} for i, value in enumerate((least, 2.0))]
    scale = layer(charts.heat(rows, X, Y, Field("v", "loss")), "squares")["encoding"]["color"]["scale"]
    assert (scale.get("type") == "log") == log


def test_a_page_escapes_what_is_not_a_fragment():
    name = "</script><b>&\"'"
    chart = html.chart(charts.dots([{**ROWS[0], "method": name}], X, BY, [X]))
    text = html.page("<title>", ["<script>alert(1)</script>", chart])
    assert "<title>&lt;title&gt;</title>" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "</script><b>" not in text
