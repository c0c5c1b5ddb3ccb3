"""``ausam audit``: the text, the page and the CSV of a run's audit, and what bad input gets."""

import csv
import io
import re
import shutil
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset

from ausam import Feedback
from ausam.audit import Audit
from ausam_lab.data.catalogue import problem, resolve
from ausam_lab.data.datasets import from_datasets
from ausam_lab.data.images import ImageSet
from ausam_lab.data.samples import SIDE, description, show
from ausam_lab.experiments import audit as experiment
from ausam_lab.report.pages import audit as page
from ausam_lab.report.pages.audit import CARDS, Audited, Sample
from ausam_lab.training import auditing
from tests.lab.blobs import N
from tests.lab.helpers import run


def opened(png):
    return np.asarray(Image.open(io.BytesIO(png)))


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_found_and_writes_page_and_csv(audited, tmp_path, capsys):
    export, out = tmp_path / "suspects.csv", tmp_path / "page.html"
    assert run("audit", audited, "--export", export, "--out", out) == 0
    said = capsys.readouterr().out
    errors = auditing.read(audited).label_errors()
    assert "30 of 300 labels are flagged." in said
    assert said.index("look wrong") < said.index("flagged")
    assert str(export) in said
    assert str(out) in said
    assert len(re.findall(r"^ *\d+ +[012] +[012] +\d+\.\d\d", said, re.M)) == 10
    rows = list(csv.DictReader(io.StringIO(export.read_text())))
    assert list(rows[0]) == ["index", "given", "likely", "loss"]
    assert [int(row["index"]) for row in rows] == errors.index.tolist()
    assert [int(row["likely"]) for row in rows] == (errors.index % 3).tolist()
    assert [float(row["loss"]) for row in rows] == sorted((float(row["loss"]) for row in rows), reverse=True)
    text = out.read_text()
    assert text.count('class="card ') == 30
    assert text.index("look wrong") < text.index('class="card ')
    for c in range(3):
        assert f"#suspects-{c}:checked~.cards>:not(.of-{c})" in text
    ours = text[: text.index('<figure class="chart">')]  # before the scripts of the charts
    assert not re.search(r'(src|href)="(?!data:)', ours)


def test_labels_that_were_made_wrong_on_purpose_are_counted(audited):
    known = experiment.read(audited)
    assert "30 of the first 30 suspects" in page.hits_line(known)
    assert page.hits_line(replace(known, made_wrong=None)) == ""
    first = known.audit.label_errors().index
    made = np.concatenate([first[:4], np.setdiff1d(np.arange(N), first)[:2]])
    text = page.text(replace(known, made_wrong=made))
    assert "6 labels were made wrong on purpose: 4 of the first 6 suspects" in text
    nobody = replace(known, audit=Audit(N, known.audit.labels))
    assert page.hits_line(nobody) == "30 labels were made wrong on purpose, so these are missed."
    labelled = problem(resolve(data="digits", label_noise=0.2, train_size=100))
    assert len(experiment._made_wrong(labelled)) == 20
    assert experiment._made_wrong(problem(resolve(data="digits", label_noise=0.0, train_size=100))) is None


def test_the_page_is_next_to_the_run_by_default(audited, tmp_path, capsys):
    shutil.copytree(audited, tmp_path / "run")
    assert run("audit", tmp_path / "run") == 0
    assert str(tmp_path / "run" / "audit.html") in capsys.readouterr().out
    assert (tmp_path / "run" / "audit.html").is_file()


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run("audit", tmp_path / "nowhere") == 2
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "runs" / "sam" / "seed-0").mkdir(parents=True)
    assert run("audit", tmp_path) == 2
    assert "seed-0" in capsys.readouterr().err


def test_a_run_without_an_audit_is_refused(audited, tmp_path, capsys):
    shutil.copytree(audited, tmp_path / "run")
    (tmp_path / "run" / auditing.FILE).unlink()
    assert run("audit", tmp_path / "run") == 2
    assert "has no audit" in (said := capsys.readouterr().err)
    assert "--resume" in said


def test_other_data_than_the_run_had_are_refused(audited, tmp_path, capsys):
    shutil.copytree(audited, tmp_path / "run")
    labels = (np.arange(N) + 1) % 3
    auditing.write(tmp_path / "run", fed(Audit(N, labels)))
    assert run("audit", tmp_path / "run") == 2
    assert "labels differ" in (said := capsys.readouterr().err)
    assert "--data-dir" in said
    auditing.write(tmp_path / "run", fed(Audit(7, np.zeros(7, int), classes=3)))
    assert run("audit", tmp_path / "run") == 2
    assert "7 in the run" in capsys.readouterr().err


def test_targets_without_classes_and_methods_without_losses_are_refused(audited, tmp_path, capsys):
    shutil.copytree(audited, tmp_path / "run")
    auditing.write(tmp_path / "run", fed(Audit(N)))
    assert run("audit", tmp_path / "run") == 2
    assert "not classes" in capsys.readouterr().err
    auditing.write(tmp_path / "run", Audit(N, np.arange(N) % 3))
    assert run("audit", tmp_path / "run") == 2
    assert "no loss of a single sample" in capsys.readouterr().err


def test_without_its_data_the_audit_is_shown_without_samples(audited, monkeypatch):
    def gone(config):
        raise ValueError(f"{config.data} is gone.")

    monkeypatch.setattr(experiment, "split_problem", gone)
    shown = experiment.read(audited)
    text = page.render(shown)
    assert "The samples are not shown" in text
    assert "blobs is gone" in text
    assert 'class="card ' not in text
    assert len(page.csv(shown).splitlines()) == 31


def fed(audit):
    audit.update(Feedback(torch.arange(len(audit)), torch.ones(len(audit)), torch.ones(len(audit))))
    return audit


# -- the page ----------------------------------------------------------------------------------------------------------


def noisy(n, classes, share=0.5, names=()):
    """An audit in which every second label, or another share, is wrong."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    bad = rng.random(n) < share
    audit = Audit(n, labels)
    for _ in range(6):
        loss = torch.tensor(np.where(bad, 4.0, 0.05) * np.exp(rng.normal(0, 0.4, n)), dtype=torch.float32)
        z = torch.full((n, classes), -30.0)  # the next class has the rest of the probability
        z[torch.arange(n), torch.from_numpy(labels)] = -loss
        z[torch.arange(n), torch.from_numpy((labels + 1) % classes)] = torch.log(-torch.expm1(-loss))
        audit.update(Feedback(torch.arange(n), loss, loss, z))
    suspects = audit.label_errors().index
    return Audited(
        title="mine",
        about="",
        command="ausam audit",
        created="today",
        audit=audit,
        verdict=audit.verdict(),
        pair="",
        names=tuple(names) or tuple(map(str, range(classes))),
        origin=np.arange(n) + 1000,
        suspects=tuple(Sample(text=f"sample {i}") for i in suspects[:CARDS]),
        texts=tuple(f"file-{i}.png" for i in suspects),
        hidden="",
    )


def test_many_suspects_are_cut_and_counted():
    shown = noisy(3000, 20, 0.3)
    count = len(shown.audit.label_errors().index)
    text = page.render(shown)
    assert text.count('class="card ') == CARDS
    assert f"{count - CARDS:,} more" in text
    assert "2,000 of 3,000 samples" in text
    assert "pairs." in text  # too many classes for a matrix
    assert len(page.csv(shown).splitlines()) == count + 1
    assert page.csv(shown).splitlines()[0] == "index,given,likely,loss,sample"


def test_names_are_shown_and_escaped_and_the_index_is_that_of_the_whole_data():
    shown = noisy(120, 3, 0.2, ["<b>cat</b>", "dog", "=1+1"])
    text = page.render(shown)
    assert "<b>cat</b>" not in text.replace("<b>&lt;", "")
    assert "&lt;b&gt;cat&lt;/b&gt;" in text
    rows = list(csv.reader(io.StringIO(page.csv(shown))))
    assert all(int(row[0]) >= 1000 for row in rows[1:])
    assert {row[1] for row in rows[1:]} <= {"<b>cat</b>", "dog", "'=1+1"}


def test_data_without_suspects_say_so():
    shown = noisy(120, 3, 0.0)
    assert "No label is flagged." in page.text(shown)
    assert "No label is flagged." in page.render(shown)
    assert page.csv(shown) == "index,given,likely,loss\n"


# -- samples -----------------------------------------------------------------------------------------------------------


def images(x):
    y = torch.zeros(len(x), dtype=torch.int64)
    return ImageSet("mine", x, y, x, y, 2, (0.0,) * x.shape[1], (1.0,) * x.shape[1])


def test_bytes_are_shown_as_they_are_and_floats_from_least_to_greatest():
    x = torch.arange(2 * 3 * 5 * 6).view(2, 3, 5, 6).to(torch.uint8)
    shown = show(images(x), 1)
    assert (opened(shown.png) == x[1].permute(1, 2, 0).numpy()).all()
    assert shown.side == 6
    grey = opened(show(images(torch.linspace(-3, 5, 16).view(1, 1, 4, 4)), 0).png)
    assert grey.shape == (4, 4)
    assert (grey.min(), grey.max()) == (0, 255)


def test_large_pictures_are_reduced_and_keep_their_shape():
    shown = show(images(torch.rand(1, 3, 2 * SIDE, 4 * SIDE)), 0)
    assert opened(shown.png).shape == (SIDE // 2, SIDE, 3)
    assert shown.side == 4 * SIDE


class Described(torch.utils.data.Dataset):
    """Rows of numbers with a text each."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((40,), float(index)), index % 2

    def describe(self, index):
        return f"the text of {index}"


def test_other_samples_are_a_text_or_a_row_of_numbers():
    data = from_datasets("mine", Described(), Described())
    part = data.part(torch.tensor([3, 8]), torch.arange(20))
    assert show(part, 1).text == description(part, 1) == "the text of 8"
    assert part.origin.tolist() == [3, 8]
    plain = from_datasets("mine", Subset(Described(), range(20)), Described())
    plain = plain.part(torch.tensor([5, 9]), torch.arange(20))
    assert show(plain, 0).text == "the text of 5"
    x = torch.arange(20.0).view(1, 20) / 3
    row = from_datasets("mine", *[torch.utils.data.TensorDataset(x.expand(4, 20), torch.arange(4) % 2)] * 2)
    assert show(row, 0).text.startswith("0 0.333 0.667 1 ")
    assert show(row, 0).text.endswith(" ...")
