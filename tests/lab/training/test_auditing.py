"""The audit that every run keeps: what it finds, and that nothing interferes with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ausam import Feedback
from ausam.audit import Audit
from ausam_lab.experiments import audit as experiment
from ausam_lab.report.pages import audit as page
from ausam_lab.training import auditing
from ausam_lab.training.loop import train
from tests.helpers import same_audit
from tests.lab.blobs import CLASSES, ME, config
from tests.lab.helpers import load, read


def test_flipped_labels_are_found_with_their_class(audited):
    wrong = load(f"{ME}:blobs", label_noise=0.1).wrong.nonzero().flatten().tolist()
    audit, record = auditing.read(audited), read(audited / "result.json")["audit"]
    errors = audit.label_errors()
    assert sorted(errors.index) == wrong
    assert (errors.likely[errors.index] == errors.index % CLASSES).all()
    assert (audit.table()["visits"] == 8).all()
    assert (record["kind"], record["flagged"]) == ("wrong labels", len(wrong))


def test_a_run_that_used_trusted_is_not_told_to_try_it(audited, tmp_path):
    list(train(config(policy="trusted(alpha=0.9)"), tmp_path))
    assert read(tmp_path / "result.json")["audit"]["kind"] == "wrong labels"
    assert "To try" in page.text(experiment.read(audited))
    assert "To try" not in page.text(experiment.read(tmp_path))


@pytest.mark.parametrize("policy", ["full", "random(alpha=0.5)"])
def test_a_run_that_was_interrupted_has_the_audit_of_one_that_was_not(tmp_path, policy):
    settings = config(policy=policy)
    list(train(settings, tmp_path / "whole"))
    rows = train(settings, tmp_path / "run")
    next(rows), next(rows), next(rows)
    rows.close()
    assert not (tmp_path / "run" / auditing.FILE).exists()
    list(train(settings, tmp_path / "run", resume=True))
    same_audit(*(auditing.read(tmp_path / name) for name in ("whole", "run")))


def test_flagged_samples_have_the_index_of_the_whole_data_set(tmp_path):
    settings = config(validation=0.3, data_seed=1)
    list(train(settings, tmp_path / "run"))
    data = load(f"{ME}:blobs", label_noise=0.1, validation=0.3, data_seed=1)
    wrong = data.origin[data.wrong].tolist()
    audited = experiment.read(tmp_path / "run")
    indices = audited.origin[audited.errors.index[:10]]
    assert len(wrong) > 10
    assert set(indices) <= set(wrong)
    assert max(indices) >= len(data.origin)  # a position among those that are left would be smaller


def test_samples_that_select_the_epoch_are_not_audited(tmp_path):
    list(train(config(select_epoch=0.2), tmp_path))
    audited = experiment.read(tmp_path)
    assert len(audited.labels) == 240
    assert audited.origin.max() >= 240
    assert (audited.columns["visits"] == 8).all()


def test_smoothing_is_taken_out():
    z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    plain, smooth = (nn.functional.cross_entropy(z, y, reduction="none", label_smoothing=s) for s in (0.0, 0.1))
    smooth[5] = torch.nan  # not evaluated
    audit = Audit(6, y)
    auditing.update(audit, Feedback(torch.arange(6), smooth, smooth + 0.25, z), y, 0.1)
    table = audit.table()
    np.testing.assert_allclose(table["mean"][:5], plain[:5], rtol=1e-5)
    assert table["visits"].tolist() == [1, 1, 1, 1, 1, 0]


def test_targets_that_are_no_classes_have_a_table_and_no_verdict(tmp_path):
    class Windows:
        train_y, task = torch.randn(5, 2, 3), None

    audit = auditing.start(Windows)
    auditing.update(audit, Feedback(torch.arange(5), torch.ones(5), torch.ones(5), torch.ones(5, 3)), torch.ones(5), 0)
    assert audit.classes is None
    assert auditing.findings(audit) is None
    auditing.write(tmp_path, audit)
    assert auditing.read(tmp_path).table()["mean"].tolist() == [1.0] * 5


def test_a_damaged_file_is_refused(audited, tmp_path):
    whole = (audited / auditing.FILE).read_bytes()
    (tmp_path / auditing.FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"audit.pth cannot be read"):
        auditing.read(tmp_path)
    torch.save({"rows": torch.zeros(7)}, tmp_path / auditing.FILE)
    with pytest.raises(ValueError, match=r"audit.pth holds no audit.*--resume"):
        auditing.read(tmp_path)


def test_the_audit_changes_no_weight(audited, tmp_path, monkeypatch):
    monkeypatch.setattr(auditing, "update", lambda *_: None)
    list(train(replace(config()), tmp_path))
    ours, theirs = (read(folder / "result.json")["weights_sha256"] for folder in (tmp_path, audited))
    assert ours == theirs
