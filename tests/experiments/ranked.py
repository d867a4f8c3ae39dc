"""Two processes that stay, and work on the runs that a test gives them together."""

import os
import socket
from contextlib import contextmanager

import torch

from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.run import joined
from spherenorm_experiments.train import _Loop

WORLD = 2


def join_and_run(rank, port, spec, root, **flags):
    """Execute a spec as one of two processes, as torchrun would have it."""
    torch.set_num_threads(1)
    _pose(rank, port)
    with joined("cpu") as ranks:
        execute_spec(spec, root, ranks=ranks, **flags)


def _pose(rank, port):
    """Set the environment as torchrun does."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def serve(rank, port, asked, answers):
    """Work on (job, arguments) until there is none."""
    torch.set_num_threads(1)
    _pose(rank, port)
    with joined("cpu") as ranks:
        while (work := asked.get()) is not None:
            job, arguments, options = work
            try:
                answers.put((rank, job(ranks, *arguments, **options)))
            except BaseException as error:
                answers.put((rank, error))


class Pair:
    """The two processes, seen from the test."""

    def __init__(self, context):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.asked = [context.Queue() for _ in range(WORLD)]
        self.answers = context.Queue()
        self.processes = [
            context.Process(target=serve, args=(rank, port, self.asked[rank], self.answers))
            for rank in range(WORLD)
        ]
        for process in self.processes:
            process.start()

    def __call__(self, job, *arguments, **options):
        """The results of a job, in the order of the ranks; an error of rank 0 is raised here."""
        for queue in self.asked:
            queue.put((job, arguments, options))
        results = dict(self.answers.get(timeout=300) for _ in range(WORLD))
        for result in results.values():
            if isinstance(result, BaseException):
                raise result
        return [results[rank] for rank in range(WORLD)]

    def close(self):
        for queue in self.asked:
            queue.put(None)
        for process in self.processes:
            process.join(300)
            process.kill()


def run(ranks, spec, root, **flags):
    """Execute a spec; the state of its end."""
    outcome = execute_spec(spec, root, ranks=ranks, **flags)
    return outcome.state if outcome.state != "failed" else outcome.error


def run_until(ranks, spec, root, checkpoints):
    """Interrupt a run when it has written so many checkpoints."""
    original, written = _Loop.checkpoint, []

    def writing(loop):
        original(loop)
        written.append(loop.done)
        if len(written) == checkpoints:
            raise KeyboardInterrupt

    _Loop.checkpoint = writing
    try:
        execute_spec(spec, root, ranks=ranks, checkpoint_seconds=0.0)
    except KeyboardInterrupt:
        return written[-1]
    finally:
        _Loop.checkpoint = original
    return None


@contextmanager
def pair_of(context):
    pair = Pair(context)
    try:
        yield pair
    finally:
        pair.close()
