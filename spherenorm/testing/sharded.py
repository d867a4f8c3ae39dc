"""A weight that lies in two processes steps as a whole one does."""

from __future__ import annotations

import multiprocessing
import socket
import sys
import warnings
from typing import Any

import torch

from spherenorm.optim import torch_optimizer
from spherenorm.testing.subject import STEPS, RefusedError, Subject, apart, told

PROCESSES = 2
TIME_LIMIT = 60.0
"""Seconds that the processes may take."""


def sharded(subject: Subject) -> str:
    """Weights cut along their rows in two processes (gloo) step as whole ones do."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise RefusedError("gloo is not there")
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RefusedError("processes cannot be forked here")
    fork: Any = multiprocessing.get_context("fork")  # so that a recipe of any origin comes along
    answers = fork.Queue()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [
        fork.Process(target=_rank, args=(rank, port, subject, answers), daemon=True)
        for rank in range(PROCESSES)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        for process in ranks:
            process.start()
    try:
        found = [answers.get(timeout=TIME_LIMIT) for _ in ranks]
    except Exception as error:
        raise AssertionError(f"no answer after {TIME_LIMIT:g} s") from error
    finally:
        for process in ranks:
            process.kill()
            process.join()
    wrong = [each for each in found if each is not None]
    assert not wrong, wrong[0]
    return f"weights in {PROCESSES} processes step as whole ones"


def _rank(rank: int, port: int, subject: Subject, answers: Any) -> None:
    try:
        answers.put(_compared(rank, port, subject))
    except Exception as error:
        keep = "a reduction along rows needs keepdim=True, not a reshape"
        answers.put(told(error) + (f"; {keep}" if "sharded dimension" in str(error) else ""))


def _compared(rank: int, port: int, subject: Subject) -> str | None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    where = f"tcp://localhost:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    cls = torch_optimizer(subject.bound.recipe)
    whole = [subject.weight(shape).requires_grad_() for shape in subject.shapes if shape]
    cut = [distribute_tensor(w.detach(), mesh, [Shard(0)]).requires_grad_() for w in whole]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"backend": "rule", **subject.bound.hyper_parameters}
        alone, together = cls(whole, **options), cls(cut, **options)
    for step in range(STEPS):
        for weight, part in zip(whole, cut, strict=True):
            weight.grad = subject.grad(weight, step)
            part.grad = distribute_tensor(weight.grad, mesh, [Shard(0)])
        alone.step()
        together.step()
    for weight, part in zip(whole, cut, strict=True):
        state = {name: _whole(x) for name, x in together.state[part].items()}
        ours = _whole(part.detach()), state
        off = apart(ours, (weight.detach(), dict(alone.state[weight])), 1e-10)
        if off is not None:
            return off
    return None


def _whole(x: Any) -> Any:
    return x.full_tensor() if hasattr(x, "full_tensor") else x
