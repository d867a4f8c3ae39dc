"""Runs that are interrupted, and what is left of any run when it has ended."""

import pytest
import torch
from running import folder_of
from torch.utils._pytree import tree_leaves_with_path

from spherenorm_experiments.engine import RunFolder
from spherenorm_experiments.engine.door import execute_spec


def ended(spec, root):
    """Everything that a run leaves."""
    folder = folder_of(spec, root)
    return folder.summary(), folder.metrics.read(), folder.load_checkpoint()


def assert_same_end(a, b):
    """Equal to the last bit."""
    assert a[0] == b[0]
    assert a[1] == b[1]
    first, second = (dict(tree_leaves_with_path(each[2])) for each in (a, b))
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda x, y: x == y
        assert same(value, second[name]), name


def stop_after(spec, root, checkpoints, **flags):
    """Interrupt a run, as Ctrl-C would, when it has written so many checkpoints."""
    original, written = RunFolder.save_checkpoint, []

    def saving(folder, state):
        original(folder, state)
        written.append(state["done"])
        if len(written) == checkpoints:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", saving)
        with pytest.raises(KeyboardInterrupt):
            execute_spec(spec, root, checkpoint_seconds=0.0, **flags)
    assert folder_of(spec, root).status()["state"] == "interrupted"
    return written
