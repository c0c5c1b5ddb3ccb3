"""Run the checks one after the other; a failed one is reported with its reason and does not stop the others."""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TextIO

import torch

from ausam import __version__
from ausam_lab.registry.devices import device as available
from ausam_lab.selftest.checks import Check, SkipCheckError, all_checks
from ausam_lab.selftest.speed import step_times


class Result(NamedTuple):
    """The outcome of a check."""

    name: str
    status: str  # "pass", "FAIL" or "skip"
    remark: str
    seconds: float


def run(device: str, checks: Mapping[str, Check]) -> Iterator[Result]:
    """The result of each check on the device, as soon as it is there."""
    for name, check in checks.items():
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                status, remark = "pass", check(device)
        except SkipCheckError as error:
            status, remark = "skip", str(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the other checks can be made)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            # the last line of an error from another process is the error itself; the first is how it came here
            status, remark = "FAIL", f"{kind}{(lines[-1] if len(lines) > 1 else ''.join(lines))[:300]}"
        yield Result(name, status, remark, time.perf_counter() - start)


def selftest(device: str, out: TextIO, checks: Mapping[str, Check] | None = None) -> int:
    """Write the table of all checks, and the time of a step; the exit code is 1 if a check failed.

    Arguments:
        device: cpu, cuda, cuda:0, mps, xpu; auto: cuda if there is one.
        out: where to write; every line at once.
        checks: the checks by name; all if None.
    """
    device = available(device)
    checks = all_checks() if checks is None else checks
    width = max(map(len, checks), default=0)
    out.write("```\n")  # so that it can be pasted into an issue as it is
    out.write(f"ausam {__version__} selftest: {circumstances(device)}\n")
    counts = dict.fromkeys(("pass", "FAIL", "skip"), 0)
    start = time.perf_counter()
    for result in run(device, checks):
        counts[result.status] += 1
        out.write(f"{result.status}  {result.name:<{width}}  {result.remark} ({result.seconds:.1f} s)\n")
        out.flush()
    try:
        out.write(f"time  {step_times(device)}\n")
    except Exception as error:  # noqa: BLE001  (a time is worth less than the table)
        out.write(f"time  not measured: {type(error).__name__}: {error}\n")
    took = time.perf_counter() - start
    out.write(f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['skip']} skipped in {took:.0f} s\n```\n")
    return 1 if counts["FAIL"] else 0


def circumstances(device: str) -> str:
    """The device and the versions."""
    kind = torch.device(device).type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else platform.processor() or platform.machine()
    parts = [f"{device} ({name})", f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    if kind == "cuda":
        parts.append(f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} devices")
    return ", ".join([*parts, platform.platform()])


def main(argv: list[str]) -> int:
    """``ausam selftest`` without the packages that the rest of the command line needs."""
    parser = argparse.ArgumentParser(prog="ausam selftest", description=ABOUT)
    add_arguments(parser)
    try:
        return selftest(parser.parse_args(argv).device, sys.stdout)
    except ValueError as error:
        parser.error(str(error))


ABOUT = (
    "Check on a device of yours that every method takes the steps that it takes in float64 on the "
    "CPU, that an error restores everything, mixed precision, torch.compile, resuming, loading in other processes and "
    "two processes; and time a step. The output can be pasted into an issue. The exit code is 1 if a check failed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    text = "cpu, cuda, cuda:0, mps, xpu; auto: cuda if there is one (default: auto)"
    parser.add_argument("--device", default="auto", help=text)
