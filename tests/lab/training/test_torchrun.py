"""``ausam train`` in several processes: one plan, equal weights, exact resume, and nobody left waiting.

One group of two processes does most, one of three the rest, each leaving what it found in files that the tests read.
"""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from ausam import METHODS
from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import resolve
from ausam_lab.training import auditing, checkpoint, loop, ranks, state
from tests.helpers import EXAMPLES, assert_equal, few_of, few_or_many
from tests.helpers import make as method
from tests.lab.helpers import TESTS, read
from tests.processes import group

ROOT = Path(__file__).parents[3]
ME = "tests.lab.training.test_torchrun"  # as the command line finds this module from there
PATH = {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


# -- what is trained ---------------------------------------------------------------------------------------------------


def noisy(classes, channels):
    """BatchNorm, whose statistics each rank moves, and dropout, whose masks each rank draws."""
    first = nn.Conv2d(channels, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*first, nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, classes))


def smooth(classes, channels):
    """Without them: what two ranks compute is what one does."""
    first = nn.Flatten(), nn.Linear(64 * channels, 16), nn.LayerNorm(16)
    return nn.Sequential(*first, nn.Tanh(), nn.Linear(16, classes))


class Points(Dataset):
    """Rank 1 stops in the middle of the second epoch, once, if the environment says how."""

    def __init__(self, n):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
        self.targets = (self.x[:, 0] * self.x[:, 1] > 0).long()
        self.read = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read += 1
        marker = Path(os.environ.get("MARKER", "."))
        if self.read == 40 and os.environ.get("RANK") == "1" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x[i], self.targets[i]


def points():
    return Points(48), Points(20)


def flags(out):
    """A run on ``points`` of three epochs, of which rank 1 reads 24 samples each; some reads come before."""
    settings = {"data": f"{ME}:points", "model": f"{ME}:line", "method": "friendlysam", "epochs": 3}
    shown = [x for k, v in {**settings, "batch-size": 16, "threads": 1, "out": out}.items() for x in (f"--{k}", str(v))]
    return ["train", *shown]


def line():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2))


def pair(name):
    """A run of 50 samples, 16 a mini-batch and 2 in the last, with a policy that the method can serve."""
    arguments = ", ".join(f"{k}={v}" for k, v in EXAMPLES.get(name, {}).items() if k != "total_steps")
    policy = "ausampling" if method(name).sharpness == "always" else "full" if name == "MomentumSAM" else "infobatch"
    sizes = {"data": "digits", "epochs": 2, "train_size": 50, "test_size": 31, "batch_size": 16, "threads": 1}
    how = {"method": f"{name}({arguments})", "policy": policy, "model": f"{ME}:noisy", "augment": "standard"}
    return resolve(**sizes, **how, device="cpu", rho=None)


SAME_AS_ONE = ("SAM", "GSAM", "FriendlySAM", "LookSAM", "VSAM", "RST", "AESAM", "PreviousGradientSAM")


def common(name):
    """Equal shares, one perturbation, and a network without BatchNorm: two ranks compute what one does."""
    policy = "ausampling" if method(name).sharpness == "always" else "full"
    equal = {"train_size": 48, "policy": policy, "augment": "none", "model": f"{ME}:smooth"}
    return replace(pair(name), sync_perturbation=True, **equal)


# -- what each process does --------------------------------------------------------------------------------------------


class Watched:
    """Runs of which the model and the sampler can be seen."""

    def __init__(self, mine):
        self.ranks = mine
        for name in ("network", "SelectiveBatchSampler"):
            setattr(state, name, self._noting(name, getattr(state, name)))

    def _noting(self, name, make):
        def noting(*args, **kwargs):
            made = make(*args, **kwargs)
            setattr(self, name, made)
            return made

        return noting

    def run(self, config, out, resume=False):
        for _ in loop.train(config, out, ranks=self.ranks, resume=resume):
            pass
        return self.network.state_dict(), self.SelectiveBatchSampler.scores.state_dict()


def two(folder, here):
    watched, results = Watched(here), {}
    for name in METHODS:
        results[name] = watched.run(pair(name), folder / name / "whole")
        if here.rank == 0:
            for world in (1, 2, 3):
                stopped(folder / name / "whole", folder / name / str(world))
        dist.barrier()
        watched.run(pair(name), folder / name / "2", resume=True)
    for name in SAME_AS_ONE:
        results[f"common {name}"] = watched.run(common(name), folder / "common" / name)
    results["told"] = mistakes(here)
    with contextlib.chdir(ROOT):
        watched.run(points_config(), folder / "points")
        watched.run(points_config(), folder / "killed-2", resume=True)
    return results


def stopped(whole, out):
    """What a finished run had left behind after its first epoch."""
    shutil.copytree(whole, out)
    (out / "result.json").unlink()
    max(out.glob("checkpoint-*.pt")).unlink()


def mistakes(here):
    """What becomes of an error in rank 0, and of an answer."""

    def wrong():
        raise ValueError("no")

    assert here.from_rank0(lambda: 7) == 7
    try:
        here.from_rank0(wrong)
    except (ValueError, SystemExit) as error:
        return repr(error)


def points_config():
    data, model = f"{ME}:points", f"{ME}:line"
    return resolve(data=data, model=model, method="friendlysam", epochs=3, batch_size=16, threads=1)


def three(folder, here):
    watched = Watched(here)
    results = {name: watched.run(pair(name), folder / name / "3", resume=True) for name in METHODS}
    with contextlib.chdir(ROOT):
        results["points"] = watched.run(points_config(), folder / "killed-3", resume=True)
    return results


def in_a_group(folder, work):
    with ranks.process_group("cpu") as here:
        torch.save(work(folder, here), folder / f"{work.__name__}-{here.rank}.pt")


def wrapper_in_a_cycle(folder):
    """Whether a wrapper that only the garbage collector can free is still there when the process group ends."""
    watched(folder, lambda here, seen: seen(here.wrap(nn.Linear(2, 2))))


def wrapper_of_a_failure(folder):
    """The same for a wrapper in the frames of an error."""

    def fails(here, seen):
        model = here.wrap(nn.Linear(2, 2))
        seen(model)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        watched(folder, fails)


def watched(folder, work):
    alive, destroy, wrappers = [], dist.destroy_process_group, []

    def destroyed():
        alive.extend(wrapper() is not None for wrapper in wrappers)
        torch.save(alive, folder / f"alive-{dist.get_rank()}.pt")
        destroy()

    def seen(model):
        model.itself = [model]
        wrappers.append(weakref.ref(model))

    gc.disable()
    with pytest.MonkeyPatch.context() as patch, ranks.process_group("cpu") as here:
        patch.setattr(dist, "destroy_process_group", destroyed)
        work(here, seen)


def command(folder, *args):
    os.chdir(ROOT)
    log = (folder / f"told-{os.environ['RANK']}").open("w")
    os.dup2(log.fileno(), sys.stderr.fileno())
    sys.stderr = log
    sys.exit(main([str(arg) for arg in args]))


def results(world, work, folder):
    """What each process of a group found."""
    assert group(world, in_a_group, folder, work) == [0] * world
    return [torch.load(folder / f"{work.__name__}-{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def killed(folder):
    """A run of which rank 1 was killed in its second epoch."""
    codes = group(2, command, folder, *flags(folder / "killed"), MARKER=str(folder / "kill"))
    for world in (1, 2, 3):
        shutil.copytree(folder / "killed", folder / f"killed-{world}")
    return codes, (folder / "told-0").read_text()


@pytest.fixture(scope="module")
def both(folder, killed):
    return results(2, two, folder)


@pytest.fixture(scope="module")
def all_three(folder, both):
    return results(3, three, folder)


def rows(out):
    return [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_ranks_end_with_equal_weights_and_scores(both, folder, name):
    (weights, scores), (also, likewise) = (of_rank[name] for of_rank in both)
    assert_equal(weights, also)
    assert_equal(scores, likewise)
    result = read(folder / name / "whole" / "result.json")
    assert result["ranks"] == 2
    used = [row["samples"] for row in rows(folder / name / "whole")]
    if "AUSampling" in result["policy"]:  # then 8 of 16 in each of 3 mini-batches, and 1 of the last, which joins them
        assert used == [50, 25]
    else:
        assert used[0] == 50 >= used[1] >= 25
    # Every sample once an epoch, in one of the ranks; two methods take only some of the rows they get.
    assert int(scores["count"].max()) == 2
    assert int(scores["count"].sum()) == sum(used) or name in ("ESAM", "KSAM")
    assert sum(used) <= result["samples_forward"] <= 3 * sum(used)


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_go_on_bit_for_bit(both, folder, name):
    whole, again = (folder / name / run for run in ("whole", "2"))
    mine, theirs = read(again / "result.json"), read(whole / "result.json")
    for key in ("weights_sha256", "test", "train", "samples_forward", "audit"):
        assert mine[key] == theirs[key], key
    assert (again / "audit.pth").read_bytes() == (whole / "audit.pth").read_bytes()
    times = ("seconds", "cpu_seconds", "images_per_second")
    a, b = ([{k: v for k, v in row.items() if k not in times} for row in rows(out)] for out in (whole, again))
    assert a == b
    saved = checkpoint.load(whole)
    assert len(saved.others) == 1
    assert not torch.equal(saved.others[0]["random"], saved.random)  # masks differ by rank
    if name == "FriendlySAM":  # and so does what it remembers of its own gradients
        mine, theirs = saved.optimizer["ausam"]["memory"], saved.others[0]["memory"]
        assert not torch.equal(mine["values"]["average"][0], theirs["values"]["average"][0])


@pytest.mark.parametrize("world", few_or_many(1, 3))
@pytest.mark.parametrize("name", few_of(METHODS, "SAM", "LookSAM", "FriendlySAM", "ESAM"))
def test_another_number_of_ranks_goes_on(both, request, folder, name, world):
    out = folder / name / str(world)
    if world == 1:
        list(loop.train(pair(name), out, resume=True))
    else:
        all_three = request.getfixturevalue("all_three")
        for rank in (1, 2):
            assert_equal(all_three[0][name][0], all_three[rank][name][0])
            assert_equal(all_three[0][name][1], all_three[rank][name][1])
    result, whole = read(out / "result.json"), rows(folder / name / "whole")
    assert result["ranks"] == world
    assert [row["ranks"] for row in rows(out)] == [2, world]
    assert rows(out)[0] == {**whole[0], **{k: rows(out)[0][k] for k in ("seconds", "cpu_seconds", "images_per_second")}}
    # The plan of the second epoch is that of two ranks: it follows from the scores, the seed and the mini-batch.
    assert rows(out)[1]["samples"] == whole[1]["samples"]
    assert result["samples_forward"] == rows(out)[-1]["samples_forward"] > rows(out)[0]["samples_forward"]
    assert result["skipped_steps"] == 0
    assert rows(out)[-1]["train_loss"] == pytest.approx(whole[-1]["train_loss"], abs=0.5)


@pytest.mark.parametrize("name", SAME_AS_ONE)
def test_with_one_perturbation_and_equal_shares_two_ranks_do_what_one_does(both, folder, name, tmp_path):
    watched = Watched(ranks.SINGLE_PROCESS)
    weights, scores = watched.run(common(name), tmp_path / "one")
    also, likewise = both[0][f"common {name}"]
    for key in weights:
        torch.testing.assert_close(also[key], weights[key], rtol=1e-3, atol=1e-4)
    assert torch.equal(likewise["count"], scores["count"])
    a, b = read(tmp_path / "one" / "result.json"), read(folder / "common" / name / "result.json")
    for key in ("samples_forward", "samples_backward"):
        assert a[key] == b[key], key
    for key in ("test", "train"):
        assert (a[key]["name"], a[key]["value"]) == (b[key]["name"], b[key]["value"])
        for figure in ("nll", "calibration_error"):  # these depend on the weights to the last bit
            assert a[key][figure] == pytest.approx(b[key][figure], rel=1e-2), (key, figure)
    mine, theirs = (auditing.read(out).table() for out in (tmp_path / "one", folder / "common" / name))
    for column in ("index", "label", "visits"):
        assert (mine[column] == theirs[column]).all(), column
    np.testing.assert_allclose(theirs["mean"], mine["mean"], rtol=0.01, atol=1e-3)


def test_an_error_in_rank_0_ends_all_and_is_said_once(both):
    assert [of_rank["told"] for of_rank in both] == ["ValueError('no')", "SystemExit(2)"]


def test_a_rank_that_dies_stops_the_other_at_once(killed, folder):
    codes, said = killed
    assert codes == [1, -signal.SIGKILL]
    last = said.splitlines()[-1]
    for word in ("Rank 0 of 2 has lost contact", f"{folder / 'killed'} holds the run up to epoch 1", "--resume"):
        assert word in last
    assert "Traceback" not in said
    assert [row["epoch"] for row in rows(folder / "killed")] == [1]


@pytest.mark.nightly
def test_a_run_of_which_a_rank_was_killed_goes_on(killed, both, all_three, folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    list(loop.train(points_config(), folder / "killed-1", resume=True))
    whole = read(folder / "points" / "result.json")
    assert read(folder / "killed-2" / "result.json")["weights_sha256"] == whole["weights_sha256"]
    for world in (1, 3):
        result = read(folder / f"killed-{world}" / "result.json")
        assert (result["ranks"], result["samples_forward"]) == (world, whole["samples_forward"])
        assert [row["samples"] for row in rows(folder / f"killed-{world}")] == [48, 48, 48]


@pytest.mark.parametrize("work", [wrapper_in_a_cycle, wrapper_of_a_failure])
def test_no_ddp_wrapper_outlives_its_process_group(folder, work):
    """With gloo torch can then deadlock: the wrapper's end holds the GIL and waits for a thread that wants it."""
    assert group(2, work, folder) == [0, 0]
    assert [torch.load(folder / f"alive-{rank}.pt") for rank in range(2)] == [[False], [False]]


@pytest.mark.nightly
def test_torchrun_starts_a_run_anew_where_a_rank_was_killed(both, folder):
    run = ["-m", "ausam", *flags(folder / "restarted"), "--resume"]
    command = [sys.executable, *TORCHRUN, "--max-restarts", "1", *run]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARKER": str(folder / "restart"), **PATH}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (folder / "restart").exists()
    result = read(folder / "restarted" / "result.json")
    assert result["weights_sha256"] == read(folder / "points" / "result.json")["weights_sha256"]
    assert result["ranks"] == 2
    assert done.stdout.count("test accuracy") == 1  # rank 0 alone speaks
    assert done.stderr.count("epoch 3/3 loss") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["compare", "sgd"], "without torchrun"),
        (["reproduce", "table1"], "without torchrun"),
        (["train", "--device", "mps"], "Use cpu"),
        (["train", "--epochs", "0"], "epochs is 0"),
    ],
)
def test_what_cannot_work_is_refused_and_said_once(args, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(args) == 2
    assert message in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_ranks_draw_for_themselves_and_rank_0_as_one_process():
    assert ranks.SINGLE_PROCESS.rank_seed(3) == ranks.Ranks(0, 4).rank_seed(3) == 3
    seeds = {ranks.Ranks(rank, 4).rank_seed(seed) for rank in range(4) for seed in range(3)}
    assert len(seeds) == 12
