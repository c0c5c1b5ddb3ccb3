"""Measure how flat the minima of runs are, from the weights that they have kept.

The measurements are those of :mod:`ausam.diagnostics`, the page is :mod:`ausam_lab.report.pages.flatness`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ausam import diagnostics
from ausam.common.random import generator
from ausam.methods import SAM
from ausam.optimizer import Method
from ausam_lab.config import Config
from ausam_lab.data.catalogue import defaults_for, split_problem
from ausam_lab.data.classification import Classification
from ausam_lab.experiments.cells import runs_in
from ausam_lab.names.from_config import OWN_RHO, method_and_policy
from ausam_lab.names.lookup import device
from ausam_lab.names.user_code import refuse_strangers
from ausam_lab.networks.build import to_memory_format
from ausam_lab.records import files, store
from ausam_lab.report.pages import flatness
from ausam_lab.report.pages.flatness import Flatness, Minimum
from ausam_lab.training import run_folder, weights
from ausam_lab.training.state import network

log = logging.getLogger("ausam")

RADII = (0.25, 0.5, 1.0, 2.0, 4.0)  # times rho
BASIS = 2**28  # numbers that the eigenvalue search may store: 1 GB
DRAWN = 0xD1A6  # seed of the samples, independent of the run: all runs are measured on the same ones

OnRun = Callable[[str, int, int], None]  # called with the name of the next run, its number and how many there are


def diagnose(
    places: Sequence[Path], samples: int, command: str, on_run: OnRun, *, trust: bool = False, **here: Any
) -> Flatness:
    """Measure the minima of all runs in these folders. Write flatness.json and flatness.html into the first one.

    A folder holds a run (``ausam train``) or a comparison (``ausam compare``). All runs are measured on the same
    samples, within the radius of the first one. One of several that cannot be measured is left out with a warning.

    Arguments:
        places: the folders.
        samples: how many training samples to measure on, >= 10.
        command: the command that the user typed.
        on_run: called before every run.
        trust: whether code that the settings of the runs name may run.
        here: settings of this machine that replace those of the runs: data_dir, threads, device.
    """
    if samples < 10:
        raise ValueError(f"--samples is {samples}. Use at least 10, preferably a few hundred.")
    runs = [run for place in places for run in runs_in(place)]
    minima: list[Minimum] = []
    for number, (name, folder) in enumerate(runs, start=1):
        on_run(name or str(folder), number, len(runs))
        try:
            if not trust:
                _refuse_strangers(folder)
            minima.append(_measure(folder, samples, minima[0].rho if minima else None, len(runs) == 1, here))
        except ValueError as error:
            if number == len(runs) and not minima:
                raise
            log.warning("Not measured: %s", error)
    result = Flatness(command, store.now(), tuple(minima))
    files.write_json(places[0] / "flatness.json", asdict(result))
    report = "report.html" if (places[0] / "report.html").exists() else ""
    files.write(places[0] / "flatness.html", flatness.render(result, report))
    return result


def _refuse_strangers(folder: Path) -> None:
    saved = run_folder.saved_config(folder)
    settings = () if saved is None else ("data", "model", "method", "policy")
    refuse_strangers(folder, {k: getattr(saved, k) for k in settings})


def _measure(folder: Path, samples: int, rho: float | None, alone: bool, here: dict[str, Any]) -> Minimum:
    """Measure the last weights of a run. A ValueError if it cannot be done."""
    saved = run_folder.saved_config(folder)
    if saved is None:
        raise ValueError(f"{folder} holds no run. Pass the folder (--out) of ausam train or ausam compare.")
    config = replace(saved, **here | {"device": device(here.get("device", "cpu"))})
    if config.quantize:
        raise ValueError(
            f"{folder} is a run with {config.quantize}-bit weights, whose loss is a staircase without a gradient or "
            "curvature to measure. Diagnose the same run in full precision."
        )
    data, _ = split_problem(config)
    if not isinstance(data.task, Classification):
        raise ValueError(
            f"{folder} is a run on {config.data}, scored by {data.task.metric}, but ausam diagnose supports only "
            "classification."
        )
    values, ended = weights.of_run(folder), run_folder.finished(folder)
    rho = radius(config, method_and_policy(config, config.epochs)[0]) if rho is None else rho
    n = len(data.train_y)
    index = torch.randperm(n, generator=generator(DRAWN))[:samples]
    part = data.part(index, torch.arange(len(data.test_y)))
    xs, ys = zip(*part.in_order("train"), strict=True)
    x, y = to_memory_format(torch.cat(xs), config.memory_format), torch.cat(ys)
    model = network(config, data).eval()
    model.load_state_dict(values)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return data.task.losses(model(x), y, config.label_smoothing)

    with torch.no_grad():
        fitted = (torch.cat([model(part) for part in torch.split(x, config.batch_size)]).argmax(1) == y).double().cpu()
    wrong = fitted[data.wrong[index]] if data.wrong is not None else fitted[:0]
    what = (model, losses, [(x, y)])
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    steps = max(10, min(60, BASIS // parameters))
    return Minimum(
        name=config.label or f"{config.method} + {config.policy}",
        config=config,
        epoch=len(run_folder.epochs(folder)) if ended is None else ended.epochs,
        parameters=parameters,
        samples=len(y),
        rho=rho,
        test=None if ended is None else ended.test.value,
        verdict="" if ended is None or ended.audit is None else ended.audit.kind,
        accuracy=float(fitted.mean()),
        memorised=float(wrong.mean()) if len(wrong) else None,
        eigenvalues=diagnostics.hessian_eigenvalues(*what, k=min(5, parameters), steps=steps),
        trace=diagnostics.hessian_trace(*what, probes=32),
        sharpness=diagnostics.sharpness(*what, [r * rho for r in RADII]),
        line=diagnostics.loss_line(*what),
        surface=diagnostics.loss_surface(*what, points=13) if alone else None,
    )


def radius(config: Config, method: Method) -> float:
    """SAM's radius for this run: its method's own, or that of its data if the method measures it on another scale."""
    inner = getattr(method, "inner", method)
    if type(inner).__name__ in OWN_RHO:
        rho = defaults_for(config.data).get("rho")
    else:
        rho = getattr(inner, "rho", 0.0) or config.rho
    return float(rho or SAM().rho)
