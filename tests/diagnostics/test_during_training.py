"""Measuring during training, in your own loop."""

import csv

import pytest
import torch

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
    assert [int(r["step"]) for r in rows] == [0, 2, 4]
    for row, (cosine, eigenvalue) in zip(rows, expected, strict=True):
        assert float(row["cosine"]) == pytest.approx(cosine)
        assert float(row["largest_eigenvalue"]) == pytest.approx(eigenvalue)
    assert all(set(r) == set(rows[0]) for r in diagnostics.rows)


def test_appends_to_a_file_of_the_same_columns_alone(net, tmp_path):
    model, losses, x, y = net
    path = tmp_path / "diagnostics.csv"
    for step in (0, 1):
        Diagnostics(every=1, what=["geometry"], csv=path)(step, model, losses, [(x, y)])
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(ValueError, match="Choose another file"):
        Diagnostics(what=["hessian"], csv=path)(0, model, losses, [(x, y)])


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
