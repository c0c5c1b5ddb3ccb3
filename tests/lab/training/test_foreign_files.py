"""Files that somebody made: images, archives and weights that would hang or end in a traceback."""

import pytest
import torch
from torch import nn

from ausam_lab.training import weights


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda w: w.to_sparse(), "stored as sparse_coo"),
        (lambda w: w.to("meta"), "a meta tensor"),
        (lambda w: w.to(torch.complex64), "complex"),
        (lambda w: w > 0, "of type bool"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "quantised"),
    ],
    ids=["sparse", "meta", "complex", "bool", "quantised"],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_cannot_be_copied_are_refused_and_nothing_changes(tmp_path, make, what):
    torch.save({"weight": make(torch.ones(2, 3)), "bias": torch.ones(2)}, tmp_path / "w.pt")
    model = nn.Linear(3, 2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"(weight is {what})|(cannot be read)"):
        weights.start_from(model, str(tmp_path / "w.pt"))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


class Anything:
    pass


def test_a_pickle_is_refused_without_advice_to_execute_it(tmp_path):
    torch.save({"weight": torch.ones(2, 3), "more": Anything()}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="is not executed") as refused:
        weights.start_from(nn.Linear(3, 2), str(tmp_path / "w.pt"))
    assert "weights_only" not in str(refused.value)
