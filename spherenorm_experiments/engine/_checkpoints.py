"""Checkpoints of a run: one file of a process alone, a folder of shards of several processes.

    checkpoint.pt                  torch.save, with its checksum; milliseconds for a small model
    checkpoint.json                names the folder of shards, with the checksums of its files
    checkpoint-000120-0/           torch.distributed.checkpoint: each rank writes its part

A folder of shards is written under a temporary name, renamed, then named in `checkpoint.json`; who
is killed between any two of these has the checkpoint before. It loads on another number of
processes, on one too, and a process group can go on from the file of a process alone.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spherenorm_experiments.engine._ranks import Ranks
from spherenorm_experiments.engine._store import RunFolder
from spherenorm_experiments.files import as_store_error, set_aside, sha256

__all__ = ["Checkpoints", "Found"]

State = dict[str, Any]
"""Nested dictionaries of tensors, by name."""

Slots = Callable[[Callable[[str], bool]], State]
"""Makes the tensors that a checkpoint is loaded into.

Its argument tells for a path such as "optimizer.state.0.weight.exp_avg" if the checkpoint has it.
"""


@dataclass(frozen=True)
class Found:
    """A checkpoint to go on from.

    Attributes:
        position: what is no tensor: how many steps are done, the mark of the records.
        load: loads the tensors into those that are made for them.
    """

    position: Mapping[str, Any]
    load: Callable[[Slots], State]


class Checkpoints:
    """The checkpoints of one run, as one of its processes sees them."""

    def __init__(self, folder: RunFolder, ranks: Ranks) -> None:
        self.folder, self.ranks = folder, ranks

    def save(self, state: State, position: Mapping[str, Any]) -> None:
        """Write a checkpoint whole, then delete the one before.

        All ranks call it. What they replicate must be equal in all: of such a tensor
        torch.distributed.checkpoint keeps the copy of a rank of its choice.
        """
        if self.ranks.parallel is None:
            self.folder.save_checkpoint({**state, **position})
            _forget_shards(self.folder.path, keep=None)
        else:
            self._save_shards(state, position)

    def newest(self) -> Found | None:
        """The intact checkpoint after most steps."""
        chosen = self.ranks.broadcast(self._newest() if self.ranks.first else None)
        if chosen is None:
            return None
        if chosen:
            path = self.folder.path / chosen["folder"]
            return Found(chosen["position"], lambda slots: _load_shards(path, slots))
        content = self.folder.load_checkpoint()
        assert content is not None
        state = {name: content[name] for name in _PARTS if name in content}
        position = {name: x for name, x in content.items() if name not in state}
        return Found(position, lambda slots: _load_whole(state, slots))

    def _newest(self) -> dict[str, Any] | None:
        """The intact checkpoint after most steps: its folder of shards, or {} for the file."""
        pointer = self._intact_pointer()
        alone = self.folder.load_checkpoint()
        if pointer is None or (alone and alone["done"] >= pointer["position"]["done"]):
            return None if alone is None else {}
        return pointer

    def _intact_pointer(self) -> dict[str, Any] | None:
        pointer: dict[str, Any] | None = self.folder.read_json("checkpoint.json")
        if pointer is None:
            return None
        path = self.folder.path / pointer["folder"]
        for name, expected in pointer["files"].items():
            if not (path / name).is_file() or _digest(path / name) != expected:
                if path.is_dir():
                    set_aside(path, "does not match its checksums")
                (self.folder.path / "checkpoint.json").unlink()
                return None
        return pointer

    def _save_shards(self, state: State, position: Mapping[str, Any]) -> None:
        import torch.distributed.checkpoint as dcp

        root = self.folder.path
        name = self.ranks.broadcast(_free_name(root, position["done"]) if self.ranks.first else "")
        partial = root / f".{name}"
        with as_store_error(partial):
            dcp.save(state, checkpoint_id=partial)  # type: ignore[attr-defined]
        if self.ranks.first:
            with as_store_error(root / name):
                os.replace(partial, root / name)
            digests = {path.name: _digest(path) for path in sorted((root / name).iterdir())}
            pointer = {"folder": name, "files": digests, "position": dict(position)}
            self.folder.write_json("checkpoint.json", pointer)
            (root / "checkpoint.pt").unlink(missing_ok=True)
            _forget_shards(root, keep=name)
        self.ranks.wait()


_PARTS = ("model", "optimizer", "ema")


def _load_whole(state: State, slots: Slots) -> State:
    made = slots(_paths(state).__contains__)
    _fill(made, state)
    return made


def _load_shards(path: Path, slots: Slots) -> State:
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(path)  # type: ignore[attr-defined]
    known = reader.read_metadata().state_dict_metadata
    state = slots(known.__contains__)
    model = state["model"]
    for name, kept in known.items():  # a buffer may have grown since the model was made
        part, _, own = name.partition(".")
        if part != "model" or not isinstance(kept, dcp.metadata.TensorStorageMetadata):
            continue
        if own not in model or model[own].shape != kept.size:
            model[own] = torch.empty(kept.size, dtype=kept.properties.dtype)
    with warnings.catch_warnings():  # that there is no process group: it is one process then
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(state, storage_reader=reader)  # type: ignore[attr-defined]
    return state


def _free_name(root: Path, done: int) -> str:
    """A name that no folder has; remains of an interrupted checkpoint are deleted."""
    for partial in root.glob(".checkpoint-*"):
        shutil.rmtree(partial, ignore_errors=True)
    n = 0
    while (root / (name := f"checkpoint-{done:09d}-{n}")).exists():
        n += 1
    return name


def _forget_shards(root: Path, keep: str | None) -> None:
    if keep is None:
        (root / "checkpoint.json").unlink(missing_ok=True)
    for path in root.glob("checkpoint-*"):
        if path.is_dir() and path.name != keep and ".corrupt-" not in path.name:
            shutil.rmtree(path, ignore_errors=True)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes())


def _paths(state: Mapping[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in state.items():
        path = f"{prefix}{name}"
        found |= _paths(value, f"{path}.") if isinstance(value, Mapping) else {path}
    return found


def _fill(slots: State, state: Mapping[str, Any]) -> None:
    """Copy whole tensors into the slots, which may be sharded."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            _fill(slots.setdefault(name, {}), value)
        elif name in slots and slots[name].shape == value.shape:
            slots[name].copy_(_placed(value, slots[name]))
        else:
            slots[name] = value


def _placed(whole: Tensor, like: Tensor) -> Tensor:
    if not hasattr(like, "placements"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
