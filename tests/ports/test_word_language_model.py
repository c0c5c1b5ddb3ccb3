"""A language model whose hidden state goes from batch to batch: it comes back as ``feedback.outputs``."""

import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, SharpnessAware
from tests.helpers import same_weights
from tests.ports.by_hand import RHO, sam_gradient, twins

WORDS, ROWS, LENGTH = 12, 4, 5


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.decoder = nn.Linear(8, WORDS)

    def forward(self, x, hidden):
        z, hidden = self.lstm(self.embedding(x), hidden)
        return self.decoder(z), hidden


def text(batches=6):
    words = torch.randint(WORDS, (ROWS, batches * LENGTH + 1), generator=torch.Generator().manual_seed(1))
    for start in range(0, batches * LENGTH, LENGTH):
        yield words[:, start : start + LENGTH], words[:, start + 1 : start + LENGTH + 1]


def empty():
    return torch.zeros(1, ROWS, 8).double(), torch.zeros(1, ROWS, 8).double()


def test_the_hidden_state_is_that_of_the_pass_at_w():
    ours, theirs = twins(Words)
    opt = SharpnessAware(torch.optim.SGD(ours.parameters(), lr=0.5), SAM(rho=RHO), ours)
    hidden = empty()
    for x, y in text():

        def losses(x, y, hidden=hidden):
            z, new = ours(x, hidden)
            return F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1), new

        feedback = opt.backward(losses, x, y)
        hidden = feedback.outputs  # detached: the graph does not reach back
        assert not hidden[0].requires_grad
        nn.utils.clip_grad_norm_(ours.parameters(), 0.25)
        opt.step()
        opt.zero_grad()

    sgd = torch.optim.SGD(theirs.parameters(), lr=0.5)
    state = empty()
    for x, y in text():

        def backward(x=x, y=y, state=state):
            z, new = theirs(x, state)
            F.cross_entropy(z.flatten(0, 1), y.flatten()).backward()
            return new

        state = tuple(h.detach() for h in sam_gradient(theirs, backward))
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.25)
        sgd.step()
        sgd.zero_grad()
    same_weights(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(hidden, state, rtol=1e-9, atol=1e-12)
