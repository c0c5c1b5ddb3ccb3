"""Measuring during training: your own loop, Lightning and the Hugging Face Trainer."""

import csv

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam.diagnostics import MEASURES, Diagnostics, hessian_eigenvalues, step_geometry


def test_own_loop_writes_rows(net, tmp_path):
    model, losses, x, y = net
    path = tmp_path / "new" / "diagnostics.csv"
    diagnostics = Diagnostics(every=2, what=list(MEASURES), rho=0.1, csv=path, samples=12)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for step in range(5):
        sgd.zero_grad()
        losses(x, y).mean().backward()
        sgd.step()
        row = diagnostics(step, model, losses, [(x, y)])
        assert (row is not None) == (step % 2 == 0)
        if row:
            expected.append(
                (
                    step_geometry(model, losses, [(x[:12], y[:12])], 0.1).cosine,
                    hessian_eigenvalues(model, losses, [(x[:12], y[:12])]).values[0],
                )
            )
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == diagnostics.columns
    assert [int(r["step"]) for r in rows] == [0, 2, 4]
    for row, (cosine, eigenvalue) in zip(rows, expected, strict=True):
        assert float(row["cosine"]) == pytest.approx(cosine)
        assert float(row["largest_eigenvalue"]) == pytest.approx(eigenvalue)
    assert all(set(r) == set(diagnostics.columns) for r in diagnostics.rows)


def test_appends_to_a_file_of_the_same_columns_alone(net, tmp_path):
    model, losses, x, y = net
    path = tmp_path / "diagnostics.csv"
    for step in (0, 1):
        Diagnostics(every=1, what=["geometry"], csv=path)(step, model, losses, [(x, y)])
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(ValueError, match="Choose another file"):
        Diagnostics(what=["hessian"], csv=path)


def test_tensorboard(net, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, losses, x, y = net
    diagnostics = Diagnostics(every=1, what="geometry", tensorboard=tmp_path)
    rows = [diagnostics(step, model, losses, [(x, y)]) for step in range(2)]
    read = events.EventAccumulator(str(tmp_path)).Reload()
    result = [(e.step, e.value) for e in read.Scalars("diagnostics/loss")]
    assert result == [(s, pytest.approx(r["loss"], rel=1e-6)) for s, r in enumerate(rows)]


def test_a_step_is_measured_once(net):
    model, losses, x, y = net
    diagnostics = Diagnostics(every=1, what=["geometry"])
    assert diagnostics(3, model, losses, [(x, y)])
    assert diagnostics(3, model, losses, [(x, y)]) is None  # accumulation: several batches, one step


def test_refused():
    with pytest.raises(ValueError, match="Choose from geometry, sharpness, hessian, trace"):
        Diagnostics(what=["everything"])
    with pytest.raises(ValueError, match="every is 0"):
        Diagnostics(every=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    module = Module()
    x, y = torch.randn(24, 4), torch.randint(3, (24,))
    diagnostics = Diagnostics(every=2, what=["geometry"])
    callback = diagnostics.lightning(lambda x, y: F.cross_entropy(module.net(x), y, reduction="none"), [(x, y)])
    trainer = lightning.Trainer(
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4))
    assert [r["step"] for r in diagnostics.rows] == [2, 4, 6]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(24, 4), torch.randint(3, (24,))
    diagnostics = Diagnostics(every=2, what=["geometry"])
    callback = diagnostics.transformers(lambda x, y: F.cross_entropy(model.net(x), y, reduction="none"), [(x, y)])
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],
        callbacks=[callback],
    )
    trainer.train()
    assert [r["step"] for r in diagnostics.rows] == [2, 4, 6]
