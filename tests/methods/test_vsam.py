"""VSAM against a transcription of its published program, branch by branch, and its quota."""

from __future__ import annotations

import itertools

import pytest
import torch

from ausam import VSAM
from ausam.common.random import generator
from ausam.methods.contrib.vsam import due
from tests.helpers import refused
from tests.methods.slow import SEED, assert_path, grad_at, length, ours, plus, theirs


class VSAMRule:
    """The published program, word for word in its order of events; ``seen`` notes which branch each step took."""

    def __init__(self, rho, window, blocks, max_part, alpha1, alpha2, beta, warmup, last):
        self.rho, self.window, self.blocks, self.beta = rho, window, blocks, beta
        self.most, self.alpha1, self.alpha2 = int(window * max_part), alpha1, alpha2
        self.warmup, self.last = warmup, last
        self.norms, self.ratios, self.variances = [0.0] * window, [0.0] * window, []
        self.quota, self.chance, self.used, self.t, self.c = 1.0, 0.5, 0, 1, beta
        self.psf, self.seen, self.quotas = None, [], []

    def sam(self, w, x, y):
        self.c = 1.0
        self.used += 1
        g = grad_at(w, x, y)
        g_s = grad_at(plus(w, g, self.rho / length(g)), x, y)
        self.psf = plus(g_s, g, -1)
        norm = length(self.psf[-self.last :])
        self.norms = [*self.norms, norm][-self.window :]
        self.ratios = [*self.ratios, norm / length(g[-self.last :])][-self.window :]
        ordered, width = sorted(self.norms), self.window // self.blocks
        inside = []
        for j in range(self.blocks):
            part = ordered[j * width : (j + 1) * width]
            mean = sum(part) / width
            inside.append(sum((p - mean) ** 2 for p in part) / (width - 1))
        self.variances.append(sum(inside) / self.blocks)
        self.seen.append("sam")
        return g_s

    def between(self, w, x, y):
        g = grad_at(w, x, y)
        if self.c > self.beta**6 * (1 + 1e-9):
            self.c *= self.beta
            self.seen.append("reuse")
            return plus(g, self.psf, self.c)
        self.seen.append("plain")
        return g

    def __call__(self, w, x, y, step):
        if step < self.warmup:
            g = self.sam(w, x, y)
            self.used = 1
            return g
        if self.t % self.window == 0:
            variances = self.variances[-self.window :]

            def mean_change(v):
                r = [(b - a) / a for a, b in itertools.pairwise(v)]
                return min(1.0, max(-1.0, sum(r) / len(r)))

            self.quota *= 1 + self.alpha1 * mean_change(self.ratios) + self.alpha2 * mean_change(variances)
            self.quota = max(1.0, min(self.quota, self.most))
            self.quotas.append(self.quota)
            self.chance = self.quota / self.window
            self.used = 0
        drawn = float(torch.rand((), generator=generator(SEED, step))) < self.chance
        missing = int(self.quota) - self.used
        sampled = (self.used < int(self.quota) and drawn) or self.window - self.t % self.window <= missing
        self.t += 1
        return self.sam(w, x, y) if sampled else self.between(w, x, y)


def test_equals_the_transcription_in_every_branch():
    settings = (0.3, 8, 2, 0.6, 0.9, 0.9, 0.7, 20, 2)
    rule = VSAMRule(*settings)
    assert_path(ours(VSAM(*settings), 150), theirs(rule, 150))
    assert set(rule.seen) == {"sam", "reuse", "plain"}
    assert max(rule.quotas) > 2
    assert len(set(rule.quotas)) > 3
    assert rule.seen[20:].count("sam") > 15


def test_trains_on_before_its_windows_are_full():
    """The published program raises here: it divides zeros of the empty windows by each other."""
    path = ours(VSAM(0.3, window=6, blocks=2, warmup=1), 40)
    assert all(t.isfinite().all() for t in path[-1])


@pytest.mark.parametrize("quota", [1.0, 3.7, 8.0])
def test_every_window_meets_its_quota_exactly(quota):
    window = 10
    positions = []
    for trial in range(50):
        memory = {"quota": quota, "used": 0}
        for position in range(window):
            if due(memory, position, window, generator(trial, position)):
                memory["used"] += 1
                positions.append(position)
        assert memory["used"] == int(quota)
    assert len(set(positions)) == window


def test_a_window_must_hold_its_blocks_and_its_quota():
    for settings, remedy in (({"window": 9}, "window >= 2 * blocks"), ({"max_part": 0.01}, "max_part >= 1 / window")):
        with refused(ValueError, remedy):
            VSAM(**settings)
