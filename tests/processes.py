"""Processes for tests, forked from one that has imported what takes long: they start in a moment, with nothing else."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import os
import runpy
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import torch
import torch.distributed as dist

SHARDS = ("torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")
LIGHT = ("torch._dynamo", "ausam_lab.cli.main", "sklearn.datasets", "pytest", "hypothesis", *SHARDS)
FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning", "accelerate", "transformers.trainer")
_imported: list[str] = []


def forked(*preload):
    """A context for processes that find these modules imported, if they are installed."""
    context = torch.multiprocessing.get_context("forkserver")
    missing = [name for name in (*LIGHT, *preload) if name not in _imported and find_spec(name.partition(".")[0])]
    if missing:  # begin another server, which has them from the start
        multiprocessing.forkserver._forkserver._stop()
        _imported.extend(missing)
        context.set_forkserver_preload(_imported)
    return context


def _member(environment, target, *args):
    torch.set_num_threads(1)
    os.environ.update(environment)
    target(*args)
    if dist.is_initialized():
        gc.collect()  # torch can deadlock when a DDP wrapper outlives its group: pytorch issue 56297
        dist.destroy_process_group()


def group(world, target, *args, preload=(), seconds=3600, **environment):
    """Exit codes of processes that do this together; -9 for one that has not ended after so many seconds.

    If rank 0 fails, the others have five seconds more.
    """
    context = forked(*preload)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environment}
    place |= {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    environments = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    them = [context.Process(target=_member, args=(mine, target, *args)) for mine in environments]
    for p in them:
        p.start()
    end = time.monotonic() + seconds
    them[0].join(seconds)
    if them[0].exitcode != 0:
        end = min(end, time.monotonic() + 5)
    for p in them:
        p.join(max(0, end - time.monotonic()))
        if p.is_alive():
            p.kill()
            p.join()
    return [p.exitcode for p in them]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _script(command, folder):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv, sys.path[0] = command, os.path.dirname(command[0])
    runpy.run_path(command[0], run_name="__main__")


def script(folder, *command, preload=(), seconds=3600):
    """What ``python`` with this file and its arguments gives; its output passes through the folder."""
    folder.mkdir(exist_ok=True)
    command = [str(word) for word in command]
    one = forked(*preload).Process(target=_script, args=(command, folder))
    one.start()
    one.join(seconds)
    if one.is_alive():
        one.kill()
        one.join()
    return subprocess.CompletedProcess(command, one.exitcode, *((folder / n).read_text() for n in ("out", "err")))
