"""Decisions, corrected labels, and the share of wrong labels that a review gives."""

import csv
import io
import os
import re

import numpy as np
import pytest
from torch.utils.data import DataLoader

from ausam.audit import Corrected, Decision, apply, draw_review, read_decisions
from ausam.audit.review import csv_text, harmless, read_labels, write_labels
from ausam.audit.share import _interval
from tests.helpers import few_or_many, refused

HEAD = "index,path,given,decision,new_label\n"


def review_by(review, wrong, rng, slips=0.0):
    """The decisions of a person who is mistaken about a share of the samples."""
    for i in review.index.tolist():
        mistaken = rng.random() < slips
        yield Decision(i, "relabel" if wrong[i] != mistaken else "keep", 0)


@pytest.mark.parametrize("size", [50, 1000, 20_000])
def test_a_draw_has_no_sample_twice_and_fills_every_stratum(size):
    order = np.random.default_rng(0).permutation(size)
    review = draw_review(order, 200, seed=3)
    assert len(set(review.index.tolist())) == min(200, size)
    assert review.sizes.sum() == size
    bounds = np.cumsum(review.sizes)
    place = np.argsort(order)[review.index]
    assert (np.searchsorted(bounds, place, side="right") == review.stratum).all()
    assert (np.bincount(review.stratum) > 0).all()


def test_the_interval_of_a_rate_is_the_exact_one():
    beta = pytest.importorskip("scipy.stats").beta
    for n in (1, 7, 60, 200):
        for k in {0, 1, n // 2, n}:
            low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
            high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
            assert _interval(k, n, 10**6) == pytest.approx((low, high), abs=1e-9)
    assert _interval(3, 10, 10) == (0.3, 0.3)


@pytest.mark.parametrize(("share", "quality"), [(0.002, 3.0), (0.01, 2.0), (0.1, 2.0), (0.4, 1.0), (0.1, 0.0)])
@pytest.mark.parametrize("reviewers", few_or_many(150, 1000))
def test_the_interval_covers(share, quality, reviewers):
    """1,000 reviewers in the nightly lane; a ranking whose scores are good, poor or of no use."""
    rng = np.random.default_rng(1)
    wrong = rng.random(5000) < share
    order = np.argsort(-(quality * wrong + rng.normal(size=5000)))
    covered = slipped = 0
    estimates = []
    for seed in range(reviewers):
        review = draw_review(order, 200, seed)
        exact = review.share(review_by(review, wrong, rng))
        covered += exact.low <= wrong.mean() <= exact.high
        estimates.append(exact.share)
        careless = review.share(review_by(review, wrong, rng, slips=0.05))
        slipped += careless.low_if_slips <= wrong.mean() <= careless.high
    assert covered >= 0.94 * reviewers
    assert slipped >= 0.94 * reviewers
    assert np.mean(estimates) == pytest.approx(wrong.mean(), abs=4 * np.std(estimates) / np.sqrt(reviewers) + 1e-9)


def test_a_share_needs_reviews_in_every_stratum():
    review = draw_review(range(1000), 40)
    with refused(ValueError, "40", "Review the rest"):
        review.share([Decision(int(review.index[0]), "keep")])
    unsure = [Decision(int(i), "unsure") for i in review.index]
    with refused(ValueError, "Review the rest"):
        review.share(unsure)


def test_the_next_samples_are_counted_by_the_rate_of_their_stratum():
    review = draw_review(range(1000), 100)
    decisions = [Decision(int(i), "remove" if i < 50 else "keep") for i in review.index]
    expected, count = review.expected_wrong(range(1000), decisions, 20)
    decided = set(review.index.tolist())
    following = [i for i in range(1000) if i not in decided][:20]
    assert (expected, count) == (sum(i < 50 for i in following), 20)


def test_decisions_are_read_and_applied(tmp_path):
    path = tmp_path / "decisions.csv"
    path.write_text(HEAD + '3,"a,b.png",cat,relabel,\'=dog\n1,,cat,remove,\n0,,cat,keep,\n2,,cat,unsure,\n', "utf-8")
    decisions = read_decisions(path, names=["cat", "=dog"])
    assert decisions == [Decision(3, "relabel", 1), Decision(1, "remove"), Decision(0, "keep"), Decision(2, "unsure")]
    labels = apply([0, 0, 0, 0], decisions)
    assert labels.tolist() == [0, -1, 0, 1]
    data = Corrected([(f"image {i}", 0) for i in range(4)], labels)
    (images, new), *_ = DataLoader(data, batch_size=4)
    assert list(images) == ["image 0", "image 2", "image 3"]
    assert new.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("index,decision\n", ["new_label"]),
        (HEAD + "x,,,keep,\n", ["line 2", "'x'"]),
        (HEAD + "1,,,discard,\n", ["discard", "keep, relabel"]),
        (HEAD + "1,,,relabel,horse\n", ["horse", "cat, dog"]),
        (HEAD + "1,,,keep,\n1,,,remove,\n", ["line 3", "sample 1"]),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, parts):
    path = tmp_path / "decisions.csv"
    path.write_text(text)
    with refused(ValueError, *parts):
        read_decisions(path, names=["cat", "dog"])


def test_a_decision_about_another_data_set_is_refused():
    with pytest.raises(IndexError, match="sample 4"):
        apply([0, 1], [Decision(4, "keep")])
    with refused(ValueError, "1 labels for 2 samples"):
        Corrected([(0, 0), (1, 1)], [0])


def test_labels_are_written_and_read_again(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(write_labels([4, 7, 9], apply([0, 1, 2], [Decision(1, "remove"), Decision(2, "relabel", 5)])))
    assert path.read_text() == "index,label\n4,0\n7,-1\n9,5\n"
    assert read_labels(path) == {4: 0, 7: -1, 9: 5}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("index,class\n", ["label", "--apply"]),
        ("index,label\n1,cat\n", ["line 2", "'cat'"]),
        ("index,label\n1\n", ["line 2", "None"]),
        ("index,label\n1,-2\n", ["-2", "-1 for a removed"]),
        ("index,label\n-1,2\n", ["line 2", "index is '-1'"]),
        ("index,label\n1,0\n1,0\n", ["line 3", "sample 1 is there twice"]),
    ],
)
def test_damaged_labels_are_refused(tmp_path, text, parts):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with refused(ValueError, *parts):
        read_labels(path)


HOSTILE = [
    "=1+1",
    "+1",
    "-1",
    "@a",
    "\t=1",
    "\r=1",
    "\n=1",
    "a\r=1+1",
    "x;=1+1",
    'x;"=1+1"',
    "＝1",
    "x\n＋1",
    "'=1",
    "a,@b",
    " =1",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_cell_starts_a_formula_and_names_are_read_again(tmp_path, name):
    text = csv_text(["index", "decision", "new_label"], [(3, "relabel", harmless(name))])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 2  # no torn row
    for cell in re.split(r"[;,\t\r\n]", harmless(name)):  # whatever it splits at
        assert not re.match(r"[\s\"]*[=+\-@＝＋－＠]", cell)
    path = tmp_path / "decisions.csv"
    path.write_text(csv_text(["index", "decision", "new_label"], [(3, "relabel", name)]), encoding="utf-8", newline="")
    assert read_decisions(path, ["cat", name]) == [Decision(3, "relabel", 1)]


@pytest.mark.parametrize("name", ["cat", "semi-final", "a=b", "images/cat-1.png", "a; b", "1"])
def test_other_text_stays_as_it_is(name):
    assert harmless(name) == name


@pytest.mark.parametrize("read", [read_decisions, read_labels])
def test_a_file_that_cannot_be_read_is_named(tmp_path, read):
    with refused(ValueError, "nowhere.csv", "cannot be read"):
        read(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    with refused(ValueError, "bytes.csv", "UTF-8"):
        read(tmp_path / "bytes.csv")
    os.mkfifo(tmp_path / "pipe.csv")  # opening it would wait for a writer
    with refused(ValueError, "pipe.csv", "regular"):
        read(tmp_path / "pipe.csv")
