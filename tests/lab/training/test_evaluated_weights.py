"""Averaged weights and the best epoch; a killed run resumes bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from ausam_lab.data.catalogue import resolve, split_problem
from ausam_lab.names.from_config import configured
from ausam_lab.names.pairs import pair
from ausam_lab.training import checkpoint, weights
from ausam_lab.training.loop import finish, train
from ausam_lab.training.state import network

SMALL = {"train_size": 96, "test_size": 40, "epochs": 4, "batch_size": 32, "threads": 1, "label_noise": 0.3}


def trained(out, stop=None, **settings):
    config = resolve(**{**SMALL, **settings})
    training = train(config, out, resume=True)
    if stop is None:
        return finish(training)
    for epoch in training:
        if epoch.epoch == stop:
            break
    training.close()
    return None


def test_the_average_is_that_of_the_steps(tmp_path):
    """Against a plain recursion over the weights of each step."""
    seen = []
    config = resolve(**SMALL, average=0.9)
    hook = weights.AveragedModel.update_parameters

    def watched(self, model):
        seen.append({k: v.double().clone() for k, v in model.state_dict().items()})
        hook(self, model)

    weights.AveragedModel.update_parameters = watched
    try:
        list(train(config, tmp_path))
    finally:
        weights.AveragedModel.update_parameters = hook
    expected = seen[0]
    for state in seen[1:]:
        expected = {k: 0.9 * expected[k] + 0.1 * v for k, v in state.items()}
    saved = checkpoint.load(tmp_path)
    final = weights.final_weights(saved)
    for name, value in final.items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(value, saved.model[name]) for name, value in weights.final_weights(saved).items())


def test_the_best_epoch_is_kept_and_paid_for(tmp_path):
    settings = resolve(**SMALL, select_epoch=0.25)
    data, held = split_problem(settings)
    model = network(settings, data).eval()
    accuracy, digests, training = {}, {}, train(settings, tmp_path / "run")
    while True:
        try:
            epoch = next(training).epoch
        except StopIteration as end:
            run = end.value
            break
        values = checkpoint.load(tmp_path / "run").model
        digests[epoch] = weights.sha256(values)
        model.load_state_dict(values)
        with torch.no_grad():
            accuracy[epoch] = sum(int((model(x).argmax(1) == y).sum()) for x, y in held.in_order("test"))
    assert (run.data.train, len(held.test_y)) == (72, 24)
    assert run.samples_forward == 4 * (2 * 72 + 24)  # SAM's two passes, and the held-out samples
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert run.test.value == rows[run.best_epoch - 1]["test"]["value"]
    assert run.best_epoch == max(accuracy, key=accuracy.get)  # the first of equal ones
    assert digests[run.best_epoch] == run.weights_sha256


def test_the_held_out_samples_keep_their_wrong_labels():
    config = resolve(**SMALL, select_epoch=0.25)
    whole, _ = split_problem(replace(config, select_epoch=0.0))
    data, held = split_problem(config)
    together = torch.cat([data.train_x, held.test_x]).flatten(1).sum(1).sort().values
    torch.testing.assert_close(together, whole.train_x.flatten(1).sum(1).sort().values)
    assert len(data.wrong) == len(data.train_y)
    assert int(data.wrong.sum()) < int(whole.wrong.sum())  # some of the wrong ones are held out
    assert len(data.test_y) == len(whole.test_y)
    other, _ = split_problem(replace(config, seed=1))
    assert not torch.equal(data.train_x, other.train_x)


@pytest.mark.parametrize(
    ("text", "name", "average", "held"),
    [
        ("sgd~ema", "sgd~ema", 0.99, None),
        ("SGD~EMA.999", "sgd~ema.999", 0.999, None),
        ("ausam-0.5~best", "ausam-0.5~best", None, 0.1),
        ("sam~ema0.9~best0.2@1x0.5", "sam~ema0.9~best0.2@1x0.5", 0.9, 0.2),
        ("SAM + AUSampling(alpha=0.5, ema=0.5)~ema", "SAM + AUSampling(alpha=0.5, ema=0.5)~ema", 0.99, None),
    ],
)
def test_a_pair_says_which_weights_it_keeps(text, name, average, held):
    known = pair(text)
    assert (known.name, known.average, known.select_epoch) == (name, average, held)
    config = configured(text, resolve(average=0.5, epochs=10))
    assert (config.average, config.select_epoch) == (average or 0.5, held or 0.0)
    assert pair(known.name) == known
