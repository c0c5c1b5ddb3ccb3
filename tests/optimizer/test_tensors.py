"""The mathematics of every method: vectors with missing entries, and of mixed precisions."""

from __future__ import annotations

import pytest
import torch

from ausam.common.tensors import add, ascent, average, dot, hardest, matching, norm, orthogonal


def test_vectors_with_missing_entries():
    a, b, c = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])
    x, y = [a, None, c, None], [b, c, None, None]
    summed = add(x, y, 2.0)
    assert [None if t is None else t.tolist() for t in summed] == [[5.0, 4.0], [4.0, 4.0], [2.0, 2.0], None]
    assert all(t is None or t.data_ptr() not in {s.data_ptr() for s in (a, b, c)} for t in summed)
    assert float(dot(x, y)) == 3.0
    assert float(dot([None], [a])) == 0.0
    assert [t is None for t in matching(y, x)] == [False, True, True, True]
    mean = average(x, y, 0.75)
    assert [None if t is None else t.tolist() for t in mean] == [[2.5, 3.0], [2.0, 2.0], [2.0, 2.0], None]
    part = orthogonal(x, y)
    assert float(dot(part, y)) == pytest.approx(0.0, abs=1e-6)
    assert all(torch.equal(s, t) for s, t in zip(orthogonal([a, c], [b * 0, c * 0]), [a, c], strict=True))
    assert dot([a.bfloat16()], [a.bfloat16()]).dtype == torch.float32
    assert hardest(torch.tensor([1.0, 5.0, 3.0]), 0.5).tolist() == [1, 2]


@pytest.mark.parametrize(
    "types",
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float64)],
    ids=str,
)
def test_the_norm_of_mixed_precisions(types):
    vector = [torch.full((5,), 1.5, dtype=t) for t in types]
    assert float(norm(vector)) == pytest.approx(1.5 * 10**0.5, rel=1e-6)  # at least float32, whatever comes first
    e = ascent(vector, 0.1)
    assert [t.dtype for t in e] == list(types)
