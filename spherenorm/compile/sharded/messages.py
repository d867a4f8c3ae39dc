"""Messages between the processes of a mesh: one all-to-all of bytes, each with a header.

A message holds tensors of any dtypes, so that a step of all weights takes two collectives.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from spherenorm.fields import cached_property

ALIGNMENT = 8
"""Bytes: each part of a message begins at a multiple of this, as every dtype needs."""
TEXT_BYTES = 160
"""Bytes of a header for the error of a process."""


class Status(enum.IntEnum):
    """The state in which a process enters a step.

    READY: it steps as all processes have agreed.
    CHANGED: it would step otherwise, by a plan that the header has the digest of.
    JOINING: weights have their first gradient; their states are not made yet.
    OTHER_WEIGHTS: the optimizer holds other sharded weights than before, or has not stepped yet.
    FAILED: an error, whose text is in the header.
    """

    READY = 0
    CHANGED = 1
    JOINING = 2
    OTHER_WEIGHTS = 3
    FAILED = 4


@dataclass(frozen=True)
class Header:
    """The beginning of a message, the same to all processes.

    Attributes:
        status: of the sender.
        digest: of the plan, or of the weights, by which the sender would step.
        has_grad: for each weight that the processes have agreed on, whether it has a gradient.
        text: the error of a sender that has failed.
    """

    status: Status
    digest: int = 0
    has_grad: tuple[bool, ...] = ()
    text: str = ""

    @classmethod
    def of_failure(cls, error: Exception, has_grad: tuple[bool, ...] = ()) -> Header:
        """Return the header of a process with an error."""
        return cls(Status.FAILED, 0, has_grad, f"{type(error).__name__}: {error}")

    def to_bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the header in as many bytes as `size_of` says."""
        result = np.zeros(self.size_of(len(self.has_grad)), dtype=np.uint8)
        result[:16] = np.array([self.status, self.digest], dtype=np.int64).view(np.uint8)
        text = self.text.encode()[:TEXT_BYTES]
        result[16 : 16 + len(text)] = np.frombuffer(text, dtype=np.uint8)
        bits = np.packbits(np.array(self.has_grad, dtype=bool))
        start = 16 + TEXT_BYTES
        result[start : start + len(bits)] = bits
        return result

    @classmethod
    def from_bytes(cls, data: np.ndarray[Any, np.dtype[np.uint8]], n_weights: int) -> Header:
        """Read a header of so many weights."""
        status, digest = data[:16].view(np.int64).tolist()
        text = data[16 : 16 + TEXT_BYTES].tobytes().rstrip(b"\0").decode(errors="replace")
        bits = np.unpackbits(data[16 + TEXT_BYTES :], count=n_weights)
        return cls(Status(status), digest, tuple(bits.astype(bool).tolist()), text)

    @staticmethod
    def size_of(n_weights: int) -> int:
        """Return the bytes of a header of so many weights."""
        return 16 + TEXT_BYTES + round_up(-(-n_weights // 8))


def round_up(n_bytes: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def digest_of(key: Any) -> int:
    """Return a number that differs for keys with different representations."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


@dataclass(frozen=True, eq=False)
class Members:
    """The processes of a mesh.

    Args:
        mesh: with this process, and with others.
    """

    mesh: Any

    @cached_property
    def ranks(self) -> list[int]:
        """The global ranks of the processes, in the order of the group."""
        return sorted(self.mesh.mesh.flatten().tolist())

    @cached_property
    def coordinates(self) -> list[tuple[int, ...]]:
        """The index of each process along each dimension of the mesh, in the order of `ranks`."""
        grid = self.mesh.mesh
        places = torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, grid.ndim)
        by_rank = dict(zip(grid.flatten().tolist(), map(tuple, places.tolist()), strict=True))
        return [by_rank[rank] for rank in self.ranks]

    @cached_property
    def index(self) -> int:
        """The index of this process in `ranks`."""
        return self.ranks.index(dist.get_rank())

    @cached_property
    def group(self) -> Any:
        """The process group; made at the first message if the mesh has none.

        All processes make it alike, and in the same order.
        """
        if self.mesh.size() == dist.get_world_size():
            return dist.group.WORLD
        large_dims = [dim for dim in range(self.mesh.ndim) if self.mesh.size(dim) > 1]
        if len(large_dims) == 1:
            return self.mesh.get_group(large_dims[0])
        return self.mesh._flatten().get_group()

    def exchange(
        self,
        header: Header,
        sizes_out: Sequence[int],
        sizes_in: Sequence[int],
        device: torch.device,
        fill: Callable[[list[Tensor]], None] | None = None,
    ) -> tuple[list[Header], list[Tensor]]:
        """Send a header and a part of a message to each process, and receive theirs.

        Args:
            header: to all.
            sizes_out, sizes_in: bytes of the parts to and from each process.
            device: of the tensors in the parts.
            fill: writes into the parts to send; None leaves them as they are.

        Returns:
            The headers of all processes, and the parts that they have sent here.

        Raises:
            Exception: what `fill` has raised, once all processes have been told.
        """
        if not any(sizes_out) and not any(sizes_in):
            device = self._device_of_small_messages(device)
        n_weights = len(header.has_grad)
        head = Header.size_of(n_weights)
        others = [i != self.index for i in range(len(self.ranks))]
        splits_out = [is_other * (head + n) for is_other, n in zip(others, sizes_out, strict=True)]
        splits_in = [is_other * (head + n) for is_other, n in zip(others, sizes_in, strict=True)]
        sent = torch.empty(sum(splits_out), dtype=torch.uint8, device=device)
        messages = torch.split(sent, splits_out)
        failure: Exception | None = None
        if fill is not None:
            try:
                fill([message[head:] for message in messages])
            except Exception as error:  # the other processes wait for the message
                failure = error
                header = Header.of_failure(error, header.has_grad)
        header_bytes = torch.from_numpy(header.to_bytes()).to(device)
        for message in messages:
            if len(message):
                message[:head].copy_(header_bytes)
        received = torch.empty(sum(splits_in), dtype=torch.uint8, device=device)
        dist.all_to_all_single(received, sent, splits_in, splits_out, group=self.group)
        messages = torch.split(received, splits_in)
        heads = [message[:head] for message in messages if len(message)]
        rows = torch.stack(heads).cpu().numpy()  # one transfer, for which a GPU waits
        headers = [Header.from_bytes(row, n_weights) for row in rows]
        headers.insert(self.index, header)
        if failure is not None:
            raise failure
        return headers, [message[head:] for message in messages]

    def _device_of_small_messages(self, device: torch.device) -> torch.device:
        """Return the CPU if the group sends from it, so that no GPU waits for a header."""
        has_cpu = "cpu" in str(dist.get_backend_config(self.group))
        return torch.device("cpu") if has_cpu else device


def view_as(part: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the beginning of a part of a message as a tensor."""
    return part[: math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))
