"""``ausam audit``: the text, the page and the files of a run's audit, decisions that come back, and bad input."""

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

from ausam import Feedback
from ausam.audit import Audit
from ausam.audit.review import read_labels
from ausam_lab.config import Config
from ausam_lab.data.catalogue import resolve
from ausam_lab.data.datasets import from_datasets
from ausam_lab.data.images import ImageSet
from ausam_lab.data.samples import SIDE, description, show
from ausam_lab.experiments import audit as experiment
from ausam_lab.experiments.compare import rows
from ausam_lab.report.pages import audit as page
from ausam_lab.training import auditing, run_folder
from tests.lab.blobs import N
from tests.lab.helpers import parsed, rewrite, run

HERE = Path("audit.html")


def opened(png):
    return np.asarray(Image.open(io.BytesIO(png)))


def data_of(html):
    """What the script of the page works on."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


@pytest.fixture
def copied(audited, tmp_path):
    """The folder of a run that a test may change."""
    shutil.copytree(audited, tmp_path / "run")
    return tmp_path / "run"


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_found_and_writes_page_and_csv(audited, tmp_path, capsys):
    export, out = tmp_path / "suspects.csv", tmp_path / "page.html"
    assert run("audit", audited, "--trust", "--export", export, "--out", out) == 0
    said = capsys.readouterr().out
    errors = auditing.read(audited).label_errors()
    assert "30 of 300 labels are flagged" in said
    assert "30 of them are among the first 30" in said
    assert str(export) in said
    assert str(out) in said
    assert len(re.findall(r"^ *\d+ +[012] +[012] +\d+\.\d+ +yes", said, re.M)) == page.FIRST
    rows = list(csv.DictReader(io.StringIO(export.read_text())))
    assert list(rows[0]) == ["index", "path", "given", "likely", "loss", "flagged"]
    assert [int(row["index"]) for row in rows] == errors.order.tolist()  # every sample
    assert [int(row["likely"]) for row in rows[:30]] == (errors.index % 3).tolist()
    assert [row["flagged"] for row in rows] == ["yes"] * 30 + ["no"] * 270
    text = out.read_text()
    data = data_of(text)
    assert data["index"] == errors.order.tolist()
    assert (data["n"], data["flagged"]) == (300, 30)
    assert len(data["review"]["row"]) == 200
    assert not re.search(r'(src|href)="(?!data:)', text)  # it fetches nothing


def test_the_page_is_next_to_the_run_by_default(copied, capsys):
    assert run("audit", copied, "--trust") == 0
    assert str(copied / "audit.html") in capsys.readouterr().out
    assert (
        data_of((copied / "audit.html").read_text())["id"]
        == data_of(page.render(experiment.read(copied), HERE)[0])["id"]
    )


def test_a_comparison_is_audited_row_by_row(audited, tmp_path, capsys):
    for name, label in (("sgd/seed-0", "SGD"), ("sam+trusted/seed-0", "SAM+Trusted"), ("sam+trusted/seed-1", "")):
        shutil.copytree(audited, tmp_path / "runs" / name)
        rewrite(tmp_path / "runs" / name / "config.json", label=label)
    assert run("audit", tmp_path, "--trust") == 0
    said = capsys.readouterr().out
    assert re.findall(r"^(\S+) +30 +30 +30$", said, re.M) == ["SAM+Trusted", "SGD"]
    pages = sorted(tmp_path.glob("runs/*/*/audit.html"))
    assert [page.parent.name for page in pages] == ["seed-0", "seed-0"]  # a run of each row
    assert all(str(page) in said for page in pages)
    assert run("audit", tmp_path, "--trust", "--export", tmp_path / "x.csv") == 2
    assert "--export" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run("audit", tmp_path / "nowhere") == 2
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "runs" / "sam" / "seed-0").mkdir(parents=True)
    for above, said in ((tmp_path, "holds no run"), (tmp_path / "runs" / "sam", "seed-0")):
        assert run("audit", above) == 2
        assert said in capsys.readouterr().err


def test_a_run_without_an_audit_is_refused(copied, capsys):
    (copied / auditing.FILE).unlink()
    assert run("audit", copied, "--trust") == 2
    assert "has no audit" in (said := capsys.readouterr().err)
    assert "--resume" in said


def test_other_data_than_the_run_had_are_refused(copied, capsys):
    labels = (np.arange(N) + 1) % 3
    auditing.write(copied, fed(Audit(N, labels)))
    assert run("audit", copied, "--trust") == 2
    assert "labels differ" in (said := capsys.readouterr().err)
    assert "--data-dir" in said
    auditing.write(copied, fed(Audit(7, np.zeros(7, int), classes=3)))
    assert run("audit", copied, "--trust") == 2
    assert "7 in the run" in capsys.readouterr().err


def test_targets_without_classes_and_methods_without_losses_are_refused(copied, capsys):
    auditing.write(copied, fed(Audit(N)))
    assert run("audit", copied, "--trust") == 2
    assert "not classes" in capsys.readouterr().err
    auditing.write(copied, Audit(N, np.arange(N) % 3))
    assert run("audit", copied, "--trust") == 2
    assert "losses per sample" in capsys.readouterr().err


def test_without_its_data_the_audit_is_shown_without_samples(audited, tmp_path, monkeypatch):
    def gone(config):
        raise ValueError(f"{config.data} is gone.")

    monkeypatch.setattr(experiment, "split_problem", gone)
    shown = experiment.read(audited)
    text, _ = page.render(shown, HERE)
    assert "blobs is gone" in text
    assert not any(data_of(text)["thumb"])
    assert len(page.csv(shown).splitlines()) == N + 1


def fed(audit):
    audit.update(Feedback(torch.arange(len(audit)), torch.ones(len(audit)), torch.ones(len(audit))))
    return audit


def test_labels_that_were_made_wrong_on_purpose_are_counted(audited, tmp_path):
    known = experiment.read(audited)
    assert "30 of them are among the first 30" in page.summary(known)
    assert "on purpose" not in page.summary(replace(known, made_wrong=known.made_wrong[:0]))
    first = known.errors.index
    made = np.concatenate([first[:4], np.setdiff1d(np.arange(N), first)[:2]])
    assert "6 labels were made wrong on purpose: 4 of them" in page.text(replace(known, made_wrong=made))


def test_the_ranking_is_there_if_nothing_is_flagged(audited, tmp_path):
    shown = experiment.read(audited)
    clean = replace(shown, errors=replace(shown.errors, flagged=np.zeros(N, bool)))
    assert "0 of 300 labels are flagged" in (said := page.text(clean))
    assert len(re.findall(r" no$", said, re.M)) == page.FIRST
    assert data_of(page.render(clean, HERE)[0])["index"] == shown.errors.order.tolist()


# -- from a folder of pictures to corrected labels ---------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder with a folder per class, light and dark pictures, without a split; the current directory is above it."""
    rng = np.random.default_rng(0)
    for name, level in (("=dark", 40), ("light", 200)):
        (tmp_path / "shots" / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(level, level + 40, (20 + i % 2, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "shots" / name / f"{i} #.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_command_trains_audits_and_corrects_a_folder(pictures, capsys):
    assert run("audit", "--data", "folder:shots", "--epochs", 2) == 0
    assert "runs/audit-shots/audit.html" in capsys.readouterr().out
    folder = pictures / "runs" / "audit-shots"
    config = run_folder.saved_config(folder)
    assert (config.data, config.epochs, config.method) == ("folder:shots@32", 2, "Plain")
    data = data_of((folder / "audit.html").read_text())
    assert (data["n"], data["names"]) == (48, ["=dark", "light"])
    assert data["file"][0].startswith("../../shots/")
    assert "%20%23.png" in data["file"][0]
    assert run("audit", "--data", "folder:shots", "--epochs", 2) == 0  # again: nothing is trained
    first, second, third = data["index"][:3]
    other = {"=dark": "light", "light": "'=dark"}[data["names"][data["given"][0]]]
    rows = [f"{first},,,relabel,{other}", f"{second},,,remove,", f"{third},,,keep,"]
    (pictures / "decisions.csv").write_text("\n".join(["index,path,given,decision,new_label", *rows]), "utf-8")
    capsys.readouterr()
    assert run("audit", folder, "--decisions", "decisions.csv", "--apply", "labels.csv") == 0
    said = capsys.readouterr().out
    assert "1 relabel, 1 remove, 1 keep" in said
    assert "drawn samples" in said  # too few for a share
    assert "--labels labels.csv" in said
    labels = read_labels(pictures / "labels.csv")
    given = dict(zip(data["index"], data["given"], strict=True))
    assert labels == given | {first: 1 - given[first], second: -1}


def test_a_second_review_keeps_what_the_first_removed(pictures):
    assert run("audit", "--data", "folder:shots", "--epochs", 1) == 0
    folder = pictures / "runs" / "audit-shots"
    index = data_of((folder / "audit.html").read_text())["index"]
    head = "index,decision,new_label\n"
    (pictures / "decisions.csv").write_text(f"{head}{index[0]},remove,\n")
    assert run("audit", folder, "--decisions", "decisions.csv", "--apply", "once.csv") == 0
    same = ("--data", "folder:shots@32", "--epochs", 1)
    assert run("train", "sgd", *same, "--labels", "once.csv", "--out", "again") == 0
    (pictures / "decisions.csv").write_text(f"{head}{index[1]},remove,\n")
    assert run("audit", "again", "--decisions", "decisions.csv", "--apply", "twice.csv") == 0
    once, twice = read_labels(pictures / "once.csv"), read_labels(pictures / "twice.csv")
    assert twice == once | {index[1]: -1}
    assert twice[index[0]] == -1


def test_reviewed_samples_give_a_share(copied, tmp_path, capsys):
    shown = experiment.read(copied)
    wrong = set(shown.made_wrong.tolist())
    rows = [f"{i},,,{'remove' if i in wrong else 'keep'}," for i in shown.review.index.tolist()]
    (tmp_path / "decisions.csv").write_text("\n".join(["index,path,given,decision,new_label", *rows]))
    assert run("audit", copied, "--trust", "--decisions", tmp_path / "decisions.csv") == 0
    said = capsys.readouterr().out
    share = float(re.search(r"([\d.]+) % of the labels are wrong", said)[1])
    assert share == pytest.approx(10, abs=3)
    assert re.search(r"About \d+ of the next 100 undecided", said)


def test_impossible_wishes_are_refused(copied, tmp_path, capsys):
    for wish, part in [
        (["audit"], "Nothing to audit"),
        (["audit", copied, "--trust", "--epochs", 3], "--epochs"),
        (["audit", copied, "--trust", "--apply", "x.csv"], "--decisions"),
    ]:
        assert run(*wish) == 2
        assert part in capsys.readouterr().err
    (tmp_path / "decisions.csv").write_text("index,path,given,decision,new_label\n999,,,keep,\n")
    assert run("audit", copied, "--trust", "--decisions", tmp_path / "decisions.csv") == 2
    assert "sample 999" in capsys.readouterr().err


def test_names_of_folders_come_from_the_data():
    assert experiment.folder_for("folder:/home/me/my pictures@64") == "runs/audit-home-me-my-pictures@64"
    assert experiment.folder_for("folder:..") == "runs/audit-data"
    assert experiment.settings_to_train({"data": "folder:x@64", "epochs": 3})["data"] == "folder:x@64"
    assert experiment.settings_to_train({"data": "digits"}) == {"data": "digits"}


@pytest.mark.parametrize(
    "settings",
    [
        {"data": "digits", "method": "Plain", "epochs": 7, "seed": 3},
        {
            "data": "folder:my pictures@32",
            "method": "SAM(ascent=0.5)",
            "rho": 0.3,
            "policy": "AUSampling",
            "alpha": 0.5,
        },
        {"data": "mine.py:load", "model": "mine.py:net", "replay": True, "lr_steps": "0.5,0.8", "label_noise": 0.1},
    ],
)
def test_suggested_commands_repeat_the_run(settings):
    config = resolve(**{"device": "cpu"} | settings)
    words = shlex.split(experiment._train(Path("run"), config, Path("labels.csv")))[2:]
    known = [word for word in words if word not in ("--labels", "labels.csv")]
    args = vars(parsed("train", *known))
    given = {name: value for name, value in args.items() if name in Config.__dataclass_fields__}
    assert resolve(**{"device": "cpu"} | given) == config
    args = vars(parsed("compare", *shlex.split(experiment._before_and_after(Path("run"), config, Path("x.csv")))[2:]))
    given = {name: value for name, value in args.items() if name in Config.__dataclass_fields__}
    (row,) = rows(args["names"], resolve(**{"device": "cpu"} | given)).values()
    same = replace(config, seed=0, data_seed=args["data_seed"], alpha=None, label=row.label, kind=row.kind)
    assert replace(row, policy=row.policy.replace("(alpha=0.5)", "")) == same
    assert args["label_files"] == ["given", "x.csv"]
    compared = shlex.split(experiment._compare("sam + Trusted(alpha=0.7)", config))
    assert compared[:6] == ["ausam", "compare", "sgd", "sam", "sam + Random(alpha=0.7)", "sam + Trusted(alpha=0.7)"]
    assert compared[compared.index("--data") + 1] == settings["data"]


# -- samples -----------------------------------------------------------------------------------------------------------


def images(x):
    y = torch.zeros(len(x), dtype=torch.int64)
    return ImageSet("mine", x, y, x, y, 2, (0.0,) * x.shape[1], (1.0,) * x.shape[1])


def test_bytes_are_shown_as_they_are_and_floats_from_least_to_greatest():
    x = torch.arange(2 * 3 * 5 * 6).view(2, 3, 5, 6).to(torch.uint8)
    shown = show(images(x), 1)
    assert (opened(shown.picture) == x[1].permute(1, 2, 0).numpy()).all()
    assert shown.side == 6
    grey = opened(show(images(torch.linspace(-3, 5, 16).view(1, 1, 4, 4)), 0).picture)
    assert grey.shape == (4, 4)
    assert (grey.min(), grey.max()) == (0, 255)


def test_large_pictures_are_reduced_and_keep_their_shape():
    shown = show(images(torch.rand(1, 3, 2 * SIDE, 4 * SIDE)), 0)
    assert opened(shown.picture).shape == (SIDE // 2, SIDE, 3)
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
    assert show(row, 0).text.startswith("0  0.333  0.667  1  ")
    long = from_datasets(
        "mine", *[torch.utils.data.TensorDataset(x.expand(4, 20).repeat(1, 4), torch.arange(4) % 2)] * 2
    )
    assert show(long, 0).text.endswith(" ...")
