"""``opt.accumulate(closure)``: what ``step(closure)`` does before the step, for several closures to a step."""

import pytest
import torch
import torch.nn.functional as F

from ausam import SAM, FriendlySAM, LookSAM, SharpnessAware


def setting(method):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return model, SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), method, model)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("method", [SAM(rho=0.1), FriendlySAM(rho=0.1), LookSAM(rho=0.1, k=2)])
def test_closures_that_are_accumulated_equal_backward(method, scale):
    """Also under a loss scale, which a method with a memory must know of: a power of two changes no bit."""
    x, y = torch.randn(12, 3), torch.randint(2, (12,))
    (a, by_rows), (b, by_closure) = setting(method), setting(method)
    for _ in range(4):
        by_rows.zero_grad()
        for part in (slice(0, 6), slice(6, 12)):
            losses = lambda x, y: F.cross_entropy(a(x), y, reduction="none")  # noqa: E731
            by_rows.backward(losses, x[part], y[part], backward=lambda loss: (loss / 2 * scale).backward())

            def closure(part=part):
                if part.start == 0:
                    by_closure.zero_grad()
                loss = F.cross_entropy(b(x[part]), y[part]) / 2
                (loss * scale).backward()
                return loss

            before = [p.detach().clone() for p in b.parameters()]
            value, expected = by_closure.accumulate(closure, scale=scale / 2), F.cross_entropy(b(x[part]), y[part]) / 2
            assert torch.equal(value, expected)  # the first value
            assert all(map(torch.equal, before, b.parameters()))  # no step was taken
        for opt in (by_rows, by_closure):
            for p in opt.param_groups[0]["params"]:
                p.grad /= scale
            opt.step()
        assert all(map(torch.equal, a.parameters(), b.parameters()))
    assert by_closure.steps == by_rows.steps == 4
