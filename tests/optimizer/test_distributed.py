"""Two processes: one plan, one table of scores, equal weights, and nobody left waiting.

One pair of processes does every check and leaves what it found in a file; the tests read it.
"""

import contextlib
import datetime
import itertools
import os
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ausam import (
    ASAM,
    METHODS,
    SAM,
    AUSampling,
    EpsilonGreedy,
    Feedback,
    Full,
    InfoBatch,
    Plain,
    Random,
    SelectiveBatchSampler,
    SharpnessAware,
    TopLoss,
)
from tests.helpers import assert_equal, make, optimizer, refused, weights, with_logits
from tests.processes import group

N = 40
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
PAIR = AUSampling(0.5, ramp=2)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def train(model, method, sampler, passes, **more):
    """The batches of each pass and its length as announced; the model and the sampler are trained."""
    opt = optimizer(model, method, **more)
    losses, seen = with_logits(model), []
    for _ in range(passes):
        announced = len(sampler)
        batches = []
        for index in sampler:
            batches.append(index)
            i = torch.tensor(index)
            sampler.update(opt.backward(losses, X[i], Y[i], index=i, weight=sampler.weight(i)))
            opt.step()
            opt.zero_grad()
        seen.append((announced, batches))
    return seen


def table(sampler):
    return sampler.scores.state_dict()


# -- what each process does --------------------------------------------------------------------------------------------


def check_pair(rank, folder):
    """SAM and AUSampling on equal shards, with a common perturbation."""
    model = DistributedDataParallel(network())
    sampler = SelectiveBatchSampler(N, 4, PAIR, seed=3)
    seen = train(model, SAM(0.1), sampler, 4, sync_perturbation=True)
    sampler.exchange()
    return seen, weights(model), table(sampler)


def check_uneven(rank, folder):
    """Sizes that do not divide, and each process with a perturbation of its own."""
    outcomes = {}
    for (n, batch), policy in (
        ((5, 2), Full()),
        ((17, 3), PAIR),
        ((37, 2), PAIR),
        ((37, 2), InfoBatch(0.5)),
        ((9, 2), TopLoss(0.5)),
    ):
        model = DistributedDataParallel(network())
        sampler = SelectiveBatchSampler(n, batch, policy)
        seen = train(model, SAM(0.1), sampler, 3)
        sampler.exchange()
        outcomes[n, batch, repr(policy)] = seen, weights(model), table(sampler)
    return outcomes


ONE_PERTURBATION = ("SAM", "ASAM", "GSAM", "LookSAM", "FriendlySAM")


def accumulate(model, method, rank, world, steps=5, parts=3, **settings):
    """Micro-batches of which only the last is synchronised; each process has its rows of each."""
    opt, losses = optimizer(model, method, **settings), with_logits(model)
    data = torch.Generator().manual_seed(7)
    for step in range(steps):
        for part in range(parts):
            x, y = torch.randn(4, 4, generator=data), torch.randint(3, (4,), generator=data)
            quiet = world > 1 and part < parts - 1 and step != 3  # step 3 does without no_sync
            with model.no_sync() if quiet else contextlib.nullcontext():
                rows = torch.arange(4)[rank::world]
                index = rows + 4 * part
                opt.backward(losses, x[rows], y[rows], index=index, backward=lambda loss: (loss / parts).backward())
        opt.step()
        opt.zero_grad()
    return weights(model), getattr(opt._context.sync, "_in_grad_unsynced", False)


def check_accumulation(rank, folder):
    one = {"sync_perturbation": True}
    return {
        **{name: accumulate(DistributedDataParallel(network()), make(name), rank, 2) for name in METHODS},
        **{(n,): accumulate(DistributedDataParallel(network()), make(n), rank, 2, **one) for n in ONE_PERTURBATION},
    }


CLOSURES = {
    "plain": (Plain(), {}),
    "sam": (SAM(0.1), {"sync_perturbation": True}),
    "asam": (ASAM(0.5), {"sync_perturbation": True}),
    "own": (SAM(0.1), {}),
}


def by_closure(model, method, more, rank, world, parts=1, steps=4):
    """Steps by closures, of which each process has its rows; of ``parts`` closures only the last is synchronised."""
    opt = optimizer(model, method, **more)
    data, said = torch.Generator().manual_seed(9), []
    for _ in range(steps):
        opt.zero_grad()
        for part in range(parts):
            x, y = torch.randn(8, 4, generator=data)[rank::world], torch.randint(3, (8,), generator=data)[rank::world]

            def closure(x=x, y=y):
                if parts == 1:
                    opt.zero_grad()
                loss = F.cross_entropy(model(x), y) / parts
                loss.backward()
                return loss

            if parts == 1:
                said.append(opt.step(closure).item())
                continue
            with model.no_sync() if world > 1 and part < parts - 1 else contextlib.nullcontext():
                opt.accumulate(closure, scale=1 / parts)
        if parts > 1:
            opt.step()
    return weights(model), said


def check_closure(rank, folder):
    outcomes = {name: by_closure(DistributedDataParallel(network()), *how, rank, 2) for name, how in CLOSURES.items()}
    outcomes["accumulated"] = by_closure(DistributedDataParallel(network()), *CLOSURES["plain"], rank, 2, parts=3)
    outcomes["accumulated sam"] = by_closure(DistributedDataParallel(network()), *CLOSURES["own"], rank, 2, parts=3)
    return outcomes


class Branch(nn.Module):
    """Uses one of two layers, or both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.both, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, left):
        z = self.both(x)
        return self.left(z) + self.right(z) if left is None else (self.left if left else self.right)(z)


def check_branches(rank, folder):
    """Inside no_sync the processes reach different layers, and one layer is reached by none."""
    model = DistributedDataParallel(Branch(), find_unused_parameters=True)
    opt = optimizer(model, Plain())
    with model.no_sync():
        opt.backward(lambda x, y: F.cross_entropy(model(x, rank == 0), y, reduction="none"), X[:4], Y[:4])
    opt.backward(lambda x, y: F.cross_entropy(model(x, True), y, reduction="none"), X[4:8], Y[4:8])
    grads = {name: p.grad for name, p in model.module.named_parameters()}

    def closure(rows, left):
        loss = F.cross_entropy(model(X[rows], left), Y[rows])
        loss.backward()
        return loss

    opt.zero_grad()
    opt = optimizer(model, Plain())
    with model.no_sync():
        opt.accumulate(lambda: closure(slice(0, 4), rank == 0))
    opt.accumulate(lambda: closure(slice(4, 8), True))
    closed = {name: p.grad for name, p in model.module.named_parameters()}

    # SAM's first pass, which is not averaged, reaches a layer that its second does not.
    opt = optimizer(model, SAM(0.1))
    calls = []

    def first_both(x, y):
        calls.append(x)
        return F.cross_entropy(model(x, None if len(calls) % 2 else True), y, reduction="none")

    for step in range(3):
        rows = torch.arange(4) + 4 * step + 12 * rank
        opt.zero_grad()
        opt.backward(first_both, X[rows], Y[rows])
        opt.step()
    return grads, closed, weights(model)


def broken(model, rank, how, quiet):
    """Four steps, of which the second meets something not finite in process 1 alone, or is left out."""
    opt, losses = optimizer(model, SAM(0.1), nonfinite="raise" if how == "raise" else "skip"), with_logits(model)
    skipped = []
    for step in range(4):
        bad = rank == 1 and step == 1
        if how == "left out" and step == 1:
            continue

        def bend(x, y, bad=bad):
            value, _ = losses(x, y)
            if bad and how in ("loss", "raise"):
                return value * float("nan")
            if bad and how == "infinite loss, finite gradient":
                return value + torch.tensor([float("inf"), 0.0])
            return value

        i = torch.arange(2) + 4 * step + 2 * rank
        try:
            for part in range(2):
                with model.no_sync() if quiet and part == 0 else contextlib.nullcontext():
                    opt.backward(bend if part == 0 else losses, X[i], Y[i])
        except RuntimeError as error:
            skipped.append(str(error))
        opt.step()
        opt.zero_grad()
        skipped.append(opt.skipped)
    return weights(model), skipped


def check_nonfinite(rank, folder):
    return {
        (how, quiet): broken(DistributedDataParallel(network()), rank, how, quiet)
        for how in ("left out", "loss", "infinite loss, finite gradient", "raise")
        for quiet in (False, True)
    }


def check_apart(rank, folder):
    """What is refused, in both processes, without waiting for anybody."""
    messages = []
    sampler = SelectiveBatchSampler(N, 4, PAIR)
    sampler.set_epoch(3 * rank)
    other = SelectiveBatchSampler(N, 4, PAIR, rank=rank, world_size=3)
    few = SelectiveBatchSampler(1, 4, Full())
    dropped = lambda: SelectiveBatchSampler(7, 4, Full(), drop_last=True)  # noqa: E731
    seeded = SelectiveBatchSampler(N, 4, PAIR, seed=5 * rank)
    torn = SelectiveBatchSampler(N, 4, PAIR)  # as if an exchange had been interrupted in one process
    torn._scores.record(torch.arange(2), torch.full((2,), float(rank)))
    for begin in (*(s.__iter__ for s in (sampler, other, few, seeded, torn)), dropped):
        try:
            next(iter(begin()))
        except (RuntimeError, ValueError) as error:
            messages.append((type(error).__name__, str(error)))
    return messages


def check_resume(rank, folder):
    """A state saved in the middle of an epoch by one process, after an exchange; then the rest of that epoch."""
    model = DistributedDataParallel(network())
    sampler = SelectiveBatchSampler(N, 4, PAIR, seed=3)
    train(model, SAM(0.1), sampler, 1)
    opt, losses, batches = optimizer(model, SAM(0.1)), with_logits(model), []
    for index in sampler:
        batches.append(index)
        i = torch.tensor(index)
        sampler.update(opt.backward(losses, X[i], Y[i], index=i))
        opt.step()
        opt.zero_grad()
        if len(batches) == 2:
            sampler.exchange()
            state = sampler.state_dict()
            if rank == 0:
                torch.save(state, f"{folder}/middle.pt")
    dist.barrier()
    again = SelectiveBatchSampler(N, 4, PAIR)
    again.load_state_dict(torch.load(f"{folder}/middle.pt"))
    return state, batches, len(again), list(again)


def shards(mesh):
    model = network()
    for part in (model[0], model[3], model):
        fully_shard(part, mesh=mesh)
    return model


def steps(model, opt, rank, world, first, last):
    losses = with_logits(model)
    for step in range(first, last):
        rows = torch.arange(8)[rank::world] + 8 * (step % 5)
        opt.backward(losses, X[rows], Y[rows], index=rows)
        opt.step()
        opt.zero_grad()


def whole_weights(model):
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def check_sharded(rank, folder):
    """fully_shard: a few methods, a distributed checkpoint in between, a step that is not finite, a refusal."""
    mesh = init_device_mesh("cpu", (2,))
    outcomes = {}
    for name in SHARDED:
        model = shards(mesh)
        steps(model, optimizer(model, make(name)), rank, 2, 0, 5)
        outcomes[name] = whole_weights(model)

    model = shards(mesh)
    opt = optimizer(model, SAM(0.1))
    steps(model, opt, rank, 2, 0, 3)
    saved = {"model": model.state_dict(), "opt": get_optimizer_state_dict(model, opt)}
    dcp.save({**saved, "ausam": opt.state_dict()["ausam"]}, checkpoint_id=f"{folder}/sharded")
    model = shards(mesh)
    opt = optimizer(model, SAM(0.1))
    state = {"model": model.state_dict(), "opt": get_optimizer_state_dict(model, opt)}
    state["ausam"] = opt.state_dict()["ausam"]
    dcp.load(state, checkpoint_id=f"{folder}/sharded")
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, opt, state["opt"])
    opt.load_state_dict({**opt.base.state_dict(), "ausam": state["ausam"]})
    counted = opt.steps
    steps(model, opt, rank, 2, 3, 5)
    outcomes["resumed"] = whole_weights(model), counted

    model = shards(mesh)
    opt = optimizer(model, make("LookSAM"))
    steps(model, opt, rank, 2, 0, 3)
    torch.save(opt.state_dict(), f"{folder}/part{rank}.pt")  # with what the method remembers, a file a process
    opt.load_state_dict(torch.load(f"{folder}/part{rank}.pt", weights_only=True))
    steps(model, opt, rank, 2, 3, 5)
    outcomes["memory"] = whole_weights(model)

    before = whole_weights(model)
    bad = X[:4] * float("nan") if rank else X[:4]
    opt.backward(with_logits(model), bad, Y[:4])
    opt.step()
    opt.zero_grad()
    outcomes["skipped"] = torch.equal(before, whole_weights(model)), opt.skipped

    # The first parameter is too small for two shards: the second process has none of it to see a NaN in.
    small = nn.Sequential(nn.LayerNorm((1, 4)), nn.Flatten(), network())
    fully_shard(small, mesh=mesh)
    lone = optimizer(small, SAM(0.1))
    before = whole_weights(small)
    bad = torch.tensor([float("inf"), 0.0, 0.0, 0.0])  # an infinite loss whose gradient is finite
    lone.backward(lambda x, y: with_logits(small)(x, y)[0] + bad, X[:4].unsqueeze(1), Y[:4])
    lone.step()
    outcomes["small"] = torch.equal(before, whole_weights(small)), lone.skipped, lone.steps
    model.set_requires_gradient_sync(False)
    try:
        opt.backward(with_logits(model), X[:4], Y[:4])
    except RuntimeError as error:
        outcomes["refused"] = str(error)
    return outcomes


SHARDED = ("Plain", "SAM", "ASAM", "GSAM", "MESA")
SHARDS_ON_CPU = hasattr(torch.cpu.Stream, "record_event")  # what fully_shard asks of a device; not in torch 2.6
needs_shards = pytest.mark.skipif(not SHARDS_ON_CPU, reason="fully_shard of this torch does not work on CPUs")
CHECKS = {
    f.__name__: f
    for f in (
        check_pair,
        check_uneven,
        check_accumulation,
        check_closure,
        check_branches,
        check_nonfinite,
        check_apart,
        check_resume,
        *([check_sharded] if SHARDS_ON_CPU else []),
    )
}


def process(folder):
    rank = int(os.environ["RANK"])
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=limit)
    outcomes = {}
    for name, check in CHECKS.items():
        try:
            outcomes[name] = check(rank, folder)
        except Exception:  # noqa: BLE001
            outcomes[name] = traceback.format_exc()
            break  # the other process may be waiting
    torch.save(outcomes, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    assert group(2, process, folder, seconds=120) == [0, 0]
    both = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(2)]
    errors = [result for mine in both for result in mine.values() if isinstance(result, str)]
    assert not errors, "\n".join(errors)
    return both


# -- tests -------------------------------------------------------------------------------------------------------------


def test_two_processes_do_what_one_does(outcomes):
    sampler = SelectiveBatchSampler(N, 8, PAIR, seed=3)
    model = network()
    seen = train(model, SAM(0.1), sampler, 4)
    (mine, w0, scores0), (theirs, w1, scores1) = (f["check_pair"] for f in outcomes)
    assert torch.equal(w0, w1)
    assert_equal(scores0, scores1)
    for (n, batches), (n0, a), (n1, b) in zip(seen, mine, theirs, strict=True):
        assert n == n0 == n1 == len(batches) == len(a) == len(b)
        assert [sorted(x + y) for x, y in zip(a, b, strict=True)] == [sorted(x) for x in batches]
        assert [len(x) for x in a] == [len(y) for y in b]
    torch.testing.assert_close(w0, weights(model), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores0["sum"], table(sampler)["sum"], rtol=1e-3, atol=1e-5)
    assert torch.equal(scores0["count"], table(sampler)["count"])
    assert int(scores0["count"].max()) > int(scores0["count"].min()) >= 1  # some were left out


def test_sizes_that_do_not_divide(outcomes):
    ours, theirs = (f["check_uneven"] for f in outcomes)
    for key, (mine, w0, scores0) in ours.items():
        others, w1, scores1 = theirs[key]
        assert torch.equal(w0, w1), key
        assert_equal(scores0, scores1)
        for (n0, a), (n1, b) in zip(mine, others, strict=True):
            if "InfoBatch" not in key[2]:  # how many it keeps depends on scores that were not exchanged yet
                assert n0 == n1 == len(a)
            assert len(a) == len(b)
            assert all(len(x) in (len(y), len(y) + 1) and y for x, y in zip(a, b, strict=True))
            everything = list(itertools.chain(*a, *b))
            assert len(set(everything)) == len(everything)
        assert int(scores0["count"].sum()) == sum(len(x) for _, batches in (*mine, *others) for x in batches)


@pytest.mark.parametrize("name", METHODS)
def test_accumulation_inside_no_sync(outcomes, name):
    (w0, unsynced), (w1, _) = (f["check_accumulation"][name] for f in outcomes)
    assert not unsynced
    assert torch.equal(w0, w1)
    if name == "Plain":
        expected, _ = accumulate(network(), make(name), 0, 1)
        torch.testing.assert_close(w0, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ONE_PERTURBATION)
def test_one_perturbation_also_inside_no_sync(outcomes, name):
    (w0, _), (w1, _) = (f["check_accumulation"][name,] for f in outcomes)
    assert torch.equal(w0, w1)
    torch.testing.assert_close(w0, accumulate(network(), make(name), 0, 1)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "sam", "asam", "accumulated"])
def test_closures_in_two_processes_do_what_one_does_on_the_whole_batch(outcomes, name):
    (w0, a), (w1, b) = (f["check_closure"][name] for f in outcomes)
    assert torch.equal(w0, w1)
    how = CLOSURES["plain" if name == "accumulated" else name]
    expected, said = by_closure(network(), *how, 0, 1, parts=3 if name == "accumulated" else 1)
    torch.testing.assert_close(w0, expected, rtol=1e-5, atol=1e-6)
    assert [(x + y) / 2 for x, y in zip(a, b, strict=True)] == pytest.approx(said, rel=1e-5)  # each its own loss
    assert not torch.allclose(w0, weights(network()), rtol=1e-2)


@pytest.mark.parametrize(("name", "parts"), [("own", 1), ("accumulated sam", 3)])
def test_closures_in_two_processes_perturb_each_by_its_own_rows(outcomes, name, parts):
    """Written out in one process: the gradient at w + e of each half, e from that half alone, then their mean."""
    (w0, _), (w1, _) = (f["check_closure"][name] for f in outcomes)
    assert torch.equal(w0, w1)
    model = network()
    params, data = list(model.parameters()), torch.Generator().manual_seed(9)
    base = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for _ in range(4):
        total = [torch.zeros_like(p) for p in params]
        for _ in range(parts):
            x, y = torch.randn(8, 4, generator=data), torch.randint(3, (8,), generator=data)
            for rank in range(2):
                half = x[rank::2], y[rank::2]
                here = [p.detach().clone() for p in params]
                g = torch.autograd.grad(F.cross_entropy(model(half[0]), half[1]), params)
                norm = torch.stack([t.norm() for t in g]).norm()
                with torch.no_grad():
                    for p, t in zip(params, g, strict=True):
                        p += 0.1 * t / norm
                g = torch.autograd.grad(F.cross_entropy(model(half[0]), half[1]), params)
                with torch.no_grad():
                    for p, w in zip(params, here, strict=True):
                        p.copy_(w)
                total = [t + s / (2 * parts) for t, s in zip(total, g, strict=True)]
        for p, t in zip(params, total, strict=True):
            p.grad = t
        base.step()
    torch.testing.assert_close(w0, weights(model), rtol=1e-5, atol=1e-6)


def test_accumulation_where_the_processes_reach_different_layers(outcomes):
    grads, closed, after = zip(*(f["check_branches"] for f in outcomes), strict=True)
    assert torch.equal(*after)
    model = Branch()
    for rows, left, share in ((slice(0, 4), True, 0.5), (slice(0, 4), False, 0.5), (slice(4, 8), True, 1.0)):
        (F.cross_entropy(model(X[rows], left), Y[rows]) * share).backward()
    for name, p in model.named_parameters():
        if p.grad is None:
            assert name.startswith("unused")
            assert grads[0][name] is grads[1][name] is None
        else:
            assert torch.equal(grads[0][name], grads[1][name])
            torch.testing.assert_close(grads[0][name], p.grad, rtol=1e-5, atol=1e-7)
            assert torch.equal(closed[0][name], closed[1][name])
            torch.testing.assert_close(closed[0][name], p.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_not_finite_in_one_process_is_left_out_by_all(outcomes, quiet):
    mine, theirs = (f["check_nonfinite"] for f in outcomes)
    expected = mine["left out", quiet][0]
    for how in ("loss", "infinite loss, finite gradient", "raise"):
        (w0, skipped), (w1, also) = mine[how, quiet], theirs[how, quiet]
        assert skipped == also
        if how != "raise":
            assert torch.equal(w0, w1)
            assert torch.equal(w0, expected)
            assert skipped == [0, 1, 1, 1]
        else:
            assert "step 1 is not finite" in skipped[1]


def test_refusals(outcomes):
    for mine in outcomes:
        expected = (
            ("RuntimeError", "epoch differs between the processes: [0, 3] by rank", "begin every pass in all"),
            ("RuntimeError", "torch.distributed has 2 processes", "leave out rank and world_size"),
            ("ValueError", "2 are needed: min_batch=1 for each of 2 processes", "Use fewer processes"),
            ("RuntimeError", "seed differs between the processes: [0, 5] by rank", "the same seed"),
            ("RuntimeError", "", "load one saved state in all"),
            ("ValueError", "leaves nothing of 7 samples for 2 processes", "Use a smaller batch_size."),
        )
        for (kind, message), (its_kind, found, remedy) in zip(mine["check_apart"], expected, strict=True):
            assert kind == its_kind
            assert found in message
            assert remedy in message


def test_resume_in_the_middle_with_two_processes_and_with_one(outcomes):
    (state, a, left, rest_a), (other, b, _, rest_b) = (f["check_resume"] for f in outcomes)
    assert_equal(state["scores"], other["scores"])
    assert torch.equal(state["plan"]["index"], other["plan"]["index"])
    assert left == 3
    assert (rest_a, rest_b) == (a[2:], b[2:])
    for world in (1, 3):
        resumed = [
            SelectiveBatchSampler(N, 4, PAIR, **({} if world == 1 else {"rank": r, "world_size": world}))
            for r in range(world)
        ]
        for s in resumed:
            s.load_state_dict(state)
        assert [len(s) for s in resumed] == [3] * world
        parts = [list(s) for s in resumed]
        assert [sorted(itertools.chain(*p)) for p in zip(*parts, strict=True)] == [
            sorted(x + y) for x, y in zip(a[2:], b[2:], strict=True)
        ]


@needs_shards
@pytest.mark.parametrize("name", SHARDED)
def test_sharded_models_do_what_one_process_does(outcomes, name):
    model = network()
    steps(model, optimizer(model, make(name)), 0, 1, 0, 5)
    for mine in outcomes:
        torch.testing.assert_close(mine["check_sharded"][name], weights(model), rtol=1e-4, atol=1e-5)


@needs_shards
def test_sharded_models_are_saved_skip_and_refuse(outcomes):
    models = network(), network()
    for model, method in zip(models, (SAM(0.1), make("LookSAM")), strict=True):
        steps(model, optimizer(model, method), 0, 1, 0, 5)
    for mine in (f["check_sharded"] for f in outcomes):
        resumed, counted = mine["resumed"]
        assert counted == 3
        torch.testing.assert_close(resumed, weights(models[0]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine["memory"], weights(models[1]), rtol=1e-4, atol=1e-5)
        assert mine["skipped"] == (True, 1)
        assert mine["small"] == (True, 1, 0)
        assert "set_requires_gradient_sync(False), so the method has none. Leave it True" in mine["refused"]


def test_the_older_fsdp_is_refused():
    model = object.__new__(FullyShardedDataParallel)
    with refused(TypeError, "FSDP1", "torch.distributed.fsdp.fully_shard (FSDP2)"):
        SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1), SAM(), model)


# -- a process that dies -----------------------------------------------------------------------------------------------


def dying(folder):
    rank = int(os.environ["RANK"])
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=limit)
    model = DistributedDataParallel(network())
    sampler = SelectiveBatchSampler(N, 4, PAIR, seed=3)
    opt, losses = optimizer(model, SAM(0.1)), with_logits(model)
    used = []
    try:
        for epoch, index in ((e, i) for e in range(2) for i in sampler):
            i = torch.tensor(index)
            sampler.update(opt.backward(losses, X[i], Y[i], index=i))
            opt.step()
            opt.zero_grad()
            used += index if epoch == 1 else []
            sampler.exchange()
            state = {"model": model.module.state_dict(), "opt": opt.state_dict(), "sampler": sampler.state_dict()}
            if rank == 0:
                torch.save({**state, "used": used}, f"{folder}/state.pt")
            if rank == 1 and len(used) == 4:
                torch.save(used, f"{folder}/theirs.pt")
                os._exit(3)
    except RuntimeError as error:
        torch.save(str(error), f"{folder}/error.pt")
        os._exit(4)


def test_a_process_that_dies_does_not_leave_the_other_waiting_and_one_process_goes_on(tmp_path):
    assert group(2, dying, tmp_path, seconds=60) == [4, 3]
    assert torch.load(tmp_path / "error.pt")  # it says something
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model = network()
    model.load_state_dict(state["model"])
    opt = optimizer(model, SAM(0.1))
    opt.load_state_dict(state["opt"])
    sampler = SelectiveBatchSampler(N, 8, PAIR)
    sampler.load_state_dict(state["sampler"])
    assert (opt.steps, sampler.epoch, len(sampler)) == (7, 1, 3)
    losses, rest = with_logits(model), []
    for index in sampler:
        i = torch.tensor(index)
        sampler.update(opt.backward(losses, X[i], Y[i], index=i))
        opt.step()
        opt.zero_grad()
        rest += index
    used = state["used"] + torch.load(tmp_path / "theirs.pt") + rest
    assert (len(used), len(set(used))) == (20, 20)
    assert int(sampler.scores.count.sum()) == 60
    assert opt.steps == 10


# -- planning alone, without processes ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*with batch_size=1")
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    n=st.integers(1, 70),
    batch=st.integers(1, 9),
    world=st.integers(1, 5),
    policy=st.sampled_from(
        [Full(), Random(0.3), AUSampling(0.2, ramp=0, unbiased=True), TopLoss(0.5), InfoBatch(0.5), EpsilonGreedy(0.5)]
    ),
    drop_last=st.booleans(),
    seed=st.integers(0, 5),
)
def test_ranks_share_the_plan_of_one_process(n, batch, world, policy, drop_last, seed):
    if drop_last and n < world * batch:
        return
    scores = torch.rand(n, generator=torch.Generator().manual_seed(seed))

    def at_epoch_one(size, **place):
        s = SelectiveBatchSampler(n, size, policy, drop_last=drop_last, seed=seed, **place)
        s._scores.record(torch.arange(n), scores)
        s.set_epoch(1)
        return s

    one = at_epoch_one(world * batch)
    ranks = [at_epoch_one(batch, rank=r, world_size=world) for r in range(world)]
    whole = list(one)
    if sum(map(len, whole)) < world:
        for s in ranks:
            with pytest.raises(ValueError, match="are needed: min_batch=1 for each of"):
                list(s)
        return
    announced = {len(s) for s in ranks}
    parts = [list(s) for s in ranks]
    assert announced == {len(parts[0])} == {len(p) for p in parts}
    together = [list(itertools.chain(*shares)) for shares in zip(*parts, strict=True)]
    for shares in zip(*parts, strict=True):
        sizes = [len(s) for s in shares]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1
    # Nothing is lost and nothing twice; and where one process has enough for all, the very batches.
    assert sorted(itertools.chain(*together)) == sorted(itertools.chain(*whole))
    if min(map(len, whole)) >= world:
        assert [sorted(t) for t in together] == [sorted(w) for w in whole]
    index = torch.arange(n)
    for s in ranks:
        assert (s.weight(index) is None) == (one.weight(index) is None)
        if one.weight(index) is not None:
            assert torch.equal(s.weight(index), one.weight(index))


def test_the_scores_of_several_need_a_process_group():
    sampler = SelectiveBatchSampler(8, 2, Full(), rank=1, world_size=2)
    index = torch.tensor(next(iter(sampler)))
    sampler.update(Feedback(index, torch.ones(2), torch.ones(2)))
    assert not bool(sampler.scores.count.any())  # they wait for the exchange
    for act in (sampler.exchange, lambda: next(iter(sampler))):
        with refused(RuntimeError, "2 samplers", "has 1 processes", "torch.distributed.init_process_group(...)"):
            act()


def test_errors_come_at_the_update_not_at_the_exchange():
    sampler = SelectiveBatchSampler(8, 2, Full(), rank=0, world_size=2)
    with pytest.raises(ValueError, match="index 8 is outside the dataset of 8 samples"):
        sampler.update(Feedback(torch.tensor([8]), torch.ones(1), torch.ones(1)))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"rank": 0}, "rank is 0 and world_size is None. Pass both, or neither to use torch.distributed's."),
        ({"world_size": 2}, "rank is None and world_size is 2. Pass both, or neither to use torch.distributed's."),
        ({"rank": 2, "world_size": 2}, "rank is 2, but with world_size 2 it must be from 0 to 1."),
    ],
)
def test_places_that_are_none(place, message):
    with pytest.raises(ValueError) as error:
        SelectiveBatchSampler(8, 2, Full(), **place)
    assert str(error.value) == message


def test_pick_counts_the_samples_that_all_processes_were_offered():
    sampler = SelectiveBatchSampler(20, 5, AUSampling(0.4, ramp=30), rank=0, world_size=2)
    sampler._scores.record(torch.arange(20), torch.rand(20))
    # The first epoch uses everything. Two batches of five in each of two processes are an epoch.
    assert [len(sampler.pick(torch.arange(5))) for _ in range(4)] == [5, 5, 2, 2]
