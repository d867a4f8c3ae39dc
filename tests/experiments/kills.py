"""Runs that are killed at random moments: `python -m tests.experiments.kills --moments 50`.

Each way of running (one process, two, loader workers, DDP, torchrun) is killed by kill -9
again and again, all of its processes or one of them, until it has made enough of its way, and goes
on. Then its records, its result and its last checkpoint are those of a run that nobody killed, to
the last bit. A moment is drawn as a number of steps of progress and a little time beyond, so that a
slow machine is killed as often.
"""

import argparse
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from ranked import WORLD, join_and_run  # noqa: E402
from running import assert_same_end, ended, folder_of, run_of  # noqa: E402
from spherenorm_pictures import picture_spec  # noqa: E402

from spherenorm_experiments.execute import execute_spec, launch_request  # noqa: E402
from spherenorm_experiments.run import Runner  # noqa: E402
from spherenorm_experiments.spec import Regime  # noqa: E402

SECONDS_BEYOND = 0.1
PATIENCE = 600.0


@dataclass(frozen=True)
class Way:
    """A way of running: its flags, and if torchrun starts it."""

    name: str
    workers: int = 0
    processes: int = 1
    torchrun: bool = False

    @property
    def flags(self):
        return {"workers": self.workers, "checkpoint_seconds": 0.0}


WAYS = (
    Way("one process"),
    Way("one process, two loader workers", workers=2),
    Way("two processes, DDP, a loader worker", workers=1, processes=2),
    Way("two processes, DDP", processes=2),
    Way("torchrun, DDP", processes=2, torchrun=True),
)


def spec_of(seed, way):
    """BatchNorm, dropout, augmentation, and an average of the weights.

    BatchNorm needs two items in each part of the last batch of 5.
    """
    regime = Regime(warmup=1, micro_batches=3 - way.processes, clip_norm=1.0)
    return picture_spec(epochs=3, seed=seed, delay=0.02, averaged=True, regime=regime)


class Attempt:
    """The processes of one attempt at a run."""

    def __init__(self, context, way, spec, root):
        self.launcher = None
        if way.torchrun:
            runner = Runner(processes=way.processes, **way.flags)
            request = Path(root) / "request.json"
            request.parent.mkdir(parents=True, exist_ok=True)
            request.write_text(launch_request(run_of(spec, root), runner))
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "spherenorm_experiments.execute", str(request)],
                stderr=subprocess.DEVNULL,
            )
            return
        if way.processes == 1:
            target, jobs = execute_spec, [((spec, root), way.flags)]
        else:
            target, port = join_and_run, _free_port()
            jobs = [((rank, port, spec, root), way.flags) for rank in range(WORLD)]
        self.children = [context.Process(target=target, args=a, kwargs=k) for a, k in jobs]
        for child in self.children:
            child.start()

    def kill(self, draw, joined):
        """Kill all, or one and wait until the others have noticed.

        A process that waits for one which died before they met waits half an hour: torchrun ends
        it, but here nobody does.
        """
        if self.launcher is not None:
            self.launcher.kill()
            self.launcher.wait()
            return
        chosen = (
            self.children if draw.random() < 0.5 or not joined else [draw.choice(self.children)]
        )
        for child in chosen:
            os.kill(child.pid, signal.SIGKILL)
        self.wait()

    def alive(self):
        if self.launcher is not None:
            return self.launcher.poll() is None
        return any(child.is_alive() for child in self.children)

    def wait(self):
        if self.launcher is not None:
            self.launcher.wait(PATIENCE)
            return
        for child in self.children:
            child.join(PATIENCE)
            assert not child.is_alive(), "a process outlives the others"


def killed(context, way, spec, root, moments, draw):
    """Kill a run at so many moments; the steps that were done at each."""
    folder, done = folder_of(spec, root), []
    while len(done) < moments and folder.summary() is None:
        attempt = Attempt(context, way, spec, root)
        begun = _done(folder)
        aim = begun + draw.randint(0, 3)
        deadline = time.monotonic() + PATIENCE
        while attempt.alive() and _done(folder) < aim:
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.002)
        time.sleep(draw.uniform(0, SECONDS_BEYOND))
        if not attempt.alive():
            break
        attempt.kill(draw, joined=_done(folder) > begun)
        done.append(_done(folder))
    _until_free(folder)
    attempt = Attempt(context, way, spec, root)
    attempt.wait()
    return done


def _done(folder):
    """The steps of the newest checkpoint."""
    return (folder.load_checkpoint() or {"done": 0})["done"]


def _until_free(folder):
    """Wait for what a killed launcher has started: it must end by itself."""
    deadline = time.monotonic() + PATIENCE
    while folder.is_held():
        assert time.monotonic() < deadline, "a process outlives its launcher"
        time.sleep(0.02)


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def check(context, way, seed, moments, root):
    """Compare a run that is killed with one that is not; the steps done at each kill."""
    spec, draw = spec_of(seed, way), random.Random(seed)
    whole, cut = Path(root) / "whole", Path(root) / "cut"
    Attempt(context, way, spec, whole).wait()
    done = killed(context, way, spec, cut, moments, draw)
    assert folder_of(spec, cut).summary() is not None, folder_of(spec, cut).status()
    assert_same_end(ended(spec, cut), ended(spec, whole))
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spherenorm_warm", "spherenorm_experiments.study"])
    count, seed = 0, arguments.seed
    while count < arguments.moments:
        way = WAYS[seed % len(WAYS)]
        with tempfile.TemporaryDirectory() as root:
            done = check(context, way, seed, 6, root)
        count, seed = count + len(done), seed + 1
        print(f"{way.name}: killed after {done} steps, equal ({count} kills)", flush=True)


if __name__ == "__main__":
    main()
