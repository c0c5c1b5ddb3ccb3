"""What a comparison and a search say about their data, and first of all whether it was fitted."""

import re

from ausam_lab.records.comparison import NamedRun
from ausam_lab.records.run import Findings
from ausam_lab.report.pages import comparison as page
from ausam_lab.report.summary import about_data, headline, text, underfitting
from ausam_lab.report.text import NONE
from tests.lab.helpers import a_comparison, a_run

NOISY = Findings("wrong labels", ("2 labels look wrong.",), 2)
UNFITTED = Findings("unfitted", ("Your model has not fitted the data.",), 0)
DIVERGED = Findings("diverged", ("The model has not fitted the data.",), 0)


def compared(**audits):
    """A comparison of rows with these findings, one per seed; later rows have better scores."""
    runs = [
        NamedRun(name, a_run(90.0 + i, seed=seed, audit=findings), ())
        for i, (name, each) in enumerate(audits.items())
        for seed, findings in enumerate(each)
    ]
    return a_comparison(runs, {"sgd": "SGD", "sam": "SAM"})


def test_underfitting_comes_first_and_names_the_rows():
    one = compared(sgd=[NOISY, NOISY], sam=[UNFITTED, UNFITTED])
    assert underfitting(one.rows).startswith("SAM: your model has not fitted the data")
    shown = page.render(one)
    assert shown.index("has not fitted the data") < shown.index('class="lead"')
    assert text(one).index("has not fitted the data") < text(one).index(headline(one)[:40])
    both = compared(sgd=[UNFITTED], sam=[UNFITTED])
    assert underfitting(both.rows).startswith("Your model has not fitted the data")
    assert about_data(both) == ""  # it is said already


def test_a_run_that_diverged_is_told_so_and_not_to_train_longer():
    some = underfitting(compared(sgd=[DIVERGED, DIVERGED], sam=[UNFITTED, UNFITTED]).rows)
    assert some.startswith("SGD diverged. Lower the learning rate. SAM: your model has not fitted")
    every = compared(sgd=[DIVERGED], sam=[DIVERGED])
    assert "Train longer" not in underfitting(every.rows)
    assert about_data(every) == ""
    assert headline(every) == ""  # there is no best row
    assert not any(word in text(every) for word in ("best", "●"))
    assert 'class="lead"' not in page.render(every)


def test_the_best_row_that_has_fitted_speaks_for_the_data():
    one = compared(sgd=[NOISY], sam=[UNFITTED])
    assert about_data(one) == "The data, by SGD with seed 0: 2 labels look wrong."
    assert "What the training says about the data" in page.render(one)


def test_a_run_that_has_not_fitted_flags_no_label():
    shown = page.render(compared(sgd=[NOISY, UNFITTED], sam=[UNFITTED]))
    cells = [re.findall("<td.*?>(.*?)</td>", row) for row in re.findall('<th scope="row">S.*', shown)[-2:]]
    assert [row[1] for row in cells] == [NONE, "2"]  # best first


def test_a_minority_of_unfitted_seeds_is_no_underfitting():
    assert underfitting(compared(sam=[NOISY, NOISY, UNFITTED]).rows) == ""
    assert underfitting(compared(sam=[None, None]).rows) == ""
