"""Agreement: all processes of a mesh step the same sharded weights, or none moves any.

Each step begins with one message, in which every process says which gradients it has and whether an
error has come up. The sizes of the message are those that the processes agreed on at an earlier
step, so that a process with another gradient, rule or state can say so where the others listen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from spherenorm.compile.interface import Path, WeightStep
from spherenorm.compile.sharded.messages import Header, Members, Status, digest_of
from spherenorm.compile.sharded.owners import (
    TensorKinds,
    Tensors,
    TransferPlan,
    kind_of,
    split_by_bytes,
    tensors_of,
)
from spherenorm.compile.sharded.shards import is_distributed

OwnerStep = Callable[[Mapping[int, WeightStep]], dict[int, Tensors]]
"""Steps whole weights by their positions, and returns the new weights and states."""
NamesOfWeights = Callable[[], Mapping[Tensor, str]]


class DisagreementError(ValueError):
    """The processes cannot step together; raised in all of them, and no weight has moved."""


@dataclass(frozen=True)
class StepPlan:
    """The way in which a process would step the sharded weights of a mesh.

    Attributes:
        paths: the path of each weight that takes part, and what is known of its tensors.
        kinds: the kinds of the weights that owners step.
        has_results: whether a second message follows.
        header_first: whether a message without tensors comes first, since sums over all weights
            are taken before the rules.
    """

    paths: Mapping[int, Any] = field(default_factory=dict)
    kinds: Mapping[int, TensorKinds] = field(default_factory=dict)
    has_results: bool = False
    header_first: bool = False

    def joined_with(self, plan: StepPlan) -> StepPlan:
        """Return `plan` with the weights of this plan that have no gradient now."""
        paths = {**self.paths, **plan.paths}
        kinds = {**self.kinds, **plan.kinds}
        by_owner = {p: kinds[p] for p in sorted(kinds) if p in plan.kinds or p not in plan.paths}
        return StepPlan(dict(sorted(paths.items())), by_owner, plan.has_results, plan.header_first)


@dataclass
class MeshStep:
    """The sharded weights of a mesh that a process steps now.

    Attributes:
        plan: of the step.
        local: by position, the tensors in this process of the weights that owners step.
        sources: by position, those weights, with the index of their group and their path.
    """

    plan: StepPlan
    local: dict[int, Tensors] = field(default_factory=dict)
    sources: dict[int, tuple[int, WeightStep, Path]] = field(default_factory=dict)


class MeshAgreement:
    """The agreement between the processes of one mesh.

    Args:
        mesh: the device mesh of the weights.

    Attributes:
        weights: the sharded weights of the mesh, in the order of the optimizer; a weight's index
            is its position.
    """

    def __init__(self, mesh: Any) -> None:
        self.members = Members(mesh)
        self.weights: list[Any] = []
        self._agreed_weights: list[Any] = []
        self._agreed_digest = 0
        self._plan = StepPlan()
        self._transfer_plans: list[TransferPlan] = []

    @property
    def sort_key(self) -> tuple[int, list[int]]:
        """The key by which all processes sort their meshes: those of many processes come first."""
        return -len(self.members.ranks), self.members.ranks

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.weights[0].device
        return device

    def exchange_inputs(
        self,
        plan: StepPlan | None,
        local: Mapping[int, Tensors],
        names: NamesOfWeights,
        failure: Exception | None = None,
        after_header: bool = False,
    ) -> list[Tensor]:
        """Take part in the first message of a step, until all processes are ready.

        Args:
            plan: of this process; None if weights are to get their first states.
            local: by position, the tensors of the weights that owners step, in this process.
            names: gives the names of weights for messages.
            failure: an error of this process before the step.
            after_header: the message is the one that follows `StepPlan.header_first`.

        Returns:
            The parts of the message from each process.

        Raises:
            DisagreementError: the processes differ, or another one has failed.
            Exception: `failure`.
        """
        while True:
            header = self._header(plan, failure)
            has_tensors = bool(self._transfer_plans) and (
                after_header or not self._plan.header_first
            )
            transfer_plan = self._transfer_plans[0] if has_tensors else None
            sends_tensors = transfer_plan is not None and header.status is Status.READY
            headers, parts = self._exchange_to_owners(
                header, transfer_plan, local if sends_tensors else {}
            )
            self._raise_failures(headers, failure)
            statuses = {header.status for header in headers}
            if Status.OTHER_WEIGHTS in statuses:
                self._require_equal(headers, "holds other sharded weights than")
                self._agreed_weights = [*self.weights]
                self._agreed_digest = header.digest
                self._plan, self._transfer_plans = StepPlan(), []
                continue
            self._require_equal_gradients(headers, names)
            if Status.JOINING in statuses:
                self._require_equal(headers, "has states of other weights than")
                return parts
            if Status.CHANGED in statuses:
                self._require_equal(
                    headers,
                    "steps sharded weights by other paths (see spherenorm.explain), or with other "
                    "dtypes, placements or states than",
                )
                assert plan is not None
                self._adopt(self._plan.joined_with(plan))
                continue
            return parts

    def exchange_results(
        self,
        parts: list[Tensor],
        local: Mapping[int, Tensors],
        step_owned: OwnerStep,
        failure: Exception | None,
    ) -> dict[int, dict[str, Tensor]]:
        """Step the owned weights, and exchange the results.

        Args:
            parts: what `exchange_inputs` has returned.
            local: as for `exchange_inputs`.
            step_owned: steps whole weights; what it raises is raised in all processes.
            failure: an error of this process since `exchange_inputs`.

        Returns:
            By position, the new values of the tensors in this process.

        Raises:
            DisagreementError: another process has failed.
            Exception: `failure`, or what `step_owned` has raised.
        """
        new_values: dict[int, dict[str, Tensor]] = {}
        if not self._plan.has_results:
            if failure is not None:
                raise failure
            return new_values
        if not self._transfer_plans:
            self._exchange_results(None, {}, failure)
        for i, transfer_plan in enumerate(self._transfer_plans):
            if i:
                headers, parts = self._exchange_to_owners(
                    Header(Status.READY), transfer_plan, local
                )
                self._raise_failures(headers, None)
            results: dict[int, Tensors] = {}
            if failure is None:
                try:
                    results = step_owned(transfer_plan.unpack(local, parts, self.device))
                except Exception as error:  # the other processes wait for the results
                    failure = error
            result_parts = self._exchange_results(transfer_plan, results, failure)
            new_values |= transfer_plan.unpack_results(results, local, result_parts)
        return new_values

    def _header(self, plan: StepPlan | None, failure: Exception | None) -> Header:
        has_grad = tuple(weight.grad is not None for weight in self.weights)
        agreed_length = len(self._agreed_weights)
        has_grad = (*has_grad, *[False] * agreed_length)[:agreed_length]
        if failure is not None:
            return Header.of_failure(failure, has_grad)
        if list(map(id, self.weights)) != list(map(id, self._agreed_weights)):
            kinds = [(tuple(w.shape), w.dtype, w.placements) for w in self.weights]
            return Header(Status.OTHER_WEIGHTS, digest_of(kinds), has_grad)
        if plan is None:
            return Header(Status.JOINING, 0, has_grad)
        joined = self._plan.joined_with(plan)
        if joined != self._plan:
            return Header(Status.CHANGED, digest_of(joined), has_grad)
        return Header(Status.READY, self._agreed_digest, has_grad)

    def _adopt(self, plan: StepPlan) -> None:
        self._plan, self._agreed_digest = plan, digest_of(plan)
        buckets = split_by_bytes(plan.kinds, len(self.members.ranks))
        self._transfer_plans = [
            TransferPlan(self.members, {p: plan.kinds[p] for p in b}) for b in buckets
        ]

    def _exchange_to_owners(
        self, header: Header, transfer_plan: TransferPlan | None, local: Mapping[int, Tensors]
    ) -> tuple[list[Header], list[Tensor]]:
        sizes = [0] * len(self.members.ranks)
        if transfer_plan is None:
            return self.members.exchange(header, sizes, sizes, self.device)
        sizes_out, sizes_in = transfer_plan.sizes_to_owners()
        return self.members.exchange(
            header, sizes_out, sizes_in, self.device, lambda parts: transfer_plan.pack(local, parts)
        )

    def _exchange_results(
        self,
        transfer_plan: TransferPlan | None,
        results: Mapping[int, Tensors],
        failure: Exception | None,
    ) -> list[Tensor]:
        header = Header(Status.READY)
        if failure is not None:
            header = Header.of_failure(failure)
        sizes_out = sizes_in = [0] * len(self.members.ranks)
        fill = None
        if transfer_plan is not None:
            sizes_out, sizes_in = transfer_plan.sizes_of_results()
            if failure is None:

                def fill(parts: list[Tensor]) -> None:
                    transfer_plan.pack_results(results, parts)

        headers, parts = self.members.exchange(header, sizes_out, sizes_in, self.device, fill)
        self._raise_failures(headers, failure)
        return parts

    def _raise_failures(self, headers: Sequence[Header], failure: Exception | None) -> None:
        if failure is not None:
            raise failure
        for rank, header in zip(self.members.ranks, headers, strict=True):
            if header.status is Status.FAILED:
                raise DisagreementError(
                    f"process {rank} raised {header.text}; no process has moved a weight"
                )

    def _require_equal(self, headers: Sequence[Header], difference: str) -> None:
        first, first_rank = headers[0], self.members.ranks[0]
        for rank, header in zip(self.members.ranks, headers, strict=True):
            if (header.status, header.digest) != (first.status, first.digest):
                raise DisagreementError(
                    f"process {rank} {difference} process {first_rank}; all processes must hold "
                    "and step the same sharded weights by the same rules; no process has moved a "
                    "weight"
                )

    def _require_equal_gradients(self, headers: Sequence[Header], names: NamesOfWeights) -> None:
        if len({header.has_grad for header in headers}) == 1:
            return
        missing_gradients = []
        for position, weight in enumerate(self._agreed_weights):
            has_grad = [header.has_grad[position] for header in headers]
            missing = [r for r, yes in zip(self.members.ranks, has_grad, strict=True) if not yes]
            if any(has_grad) and missing:
                processes = ", ".join(map(str, missing))
                missing_gradients.append(f"{names()[weight]} in process {processes}")
        more = f" and {len(missing_gradients) - 3} more" if len(missing_gradients) > 3 else ""
        raise DisagreementError(
            "a sharded weight must have a gradient in all processes or in none; there is no "
            f"gradient of {'; '.join(missing_gradients[:3])}{more}; no process has moved a weight. "
            "Give the weight a gradient of zeros there, or set its gradient to None in all "
            "processes"
        )


class Agreement:
    """The agreements of an optimizer, one for each mesh of its weights.

    With several meshes, all processes take them in one order, and a failure is told to each.
    """

    def __init__(self) -> None:
        self._by_mesh: dict[Any, MeshAgreement] = {}
        self.meshes: list[MeshAgreement] = []
        self._names: NamesOfWeights = dict

    def find_weights(self, weights: Sequence[Any], names: NamesOfWeights) -> None:
        """Take the weights of an optimizer for the step that begins.

        Args:
            weights: all of them; those that are not sharded need no agreement.
            names: gives the names of weights for messages.
        """
        by_mesh: dict[Any, list[Any]] = {}
        for weight in filter(is_distributed, weights):
            by_mesh.setdefault(weight.device_mesh, []).append(weight)
        self._names = names
        for mesh, weights_of_mesh in by_mesh.items():
            if mesh not in self._by_mesh:
                self._by_mesh[mesh] = MeshAgreement(mesh)
            self._by_mesh[mesh].weights = weights_of_mesh
        self.meshes = sorted((self._by_mesh[mesh] for mesh in by_mesh), key=lambda m: m.sort_key)

    def check_gradients(self) -> None:
        """Check that all processes have the same gradients, before the first states are made.

        Raises:
            DisagreementError: they have not.
        """
        self._begin([None] * len(self.meshes), [{}] * len(self.meshes), None, False)

    def broadcast_and_raise(self, failure: Exception, after_header: bool = False) -> NoReturn:
        """Tell an error of this process to the others; then raise it.

        Args:
            failure: the error; one that all processes have raised is not told again.
            after_header: see `MeshAgreement.exchange_inputs`.

        Raises:
            Exception: `failure`.
        """
        if not isinstance(failure, DisagreementError):
            n = len(self.meshes)
            self._begin([None] * n, [{}] * n, failure, after_header)
        raise failure

    def mesh_steps(
        self, weights: Iterable[tuple[int, WeightStep, Path]], header_first: bool
    ) -> list[MeshStep]:
        """Return the step of each mesh.

        Args:
            weights: all weights to step, with the index of their group and their path.
            header_first: see `StepPlan`.
        """
        if not self.meshes:
            return []
        weights = [*weights]
        has_results = any(path.name == "owner" for _, _, path in weights)
        positions = {
            id(weight): (i, position)
            for i, mesh in enumerate(self.meshes)
            for position, weight in enumerate(mesh.weights)
        }
        plans: list[tuple[dict[int, Any], dict[int, TensorKinds]]] = [({}, {}) for _ in self.meshes]
        steps = [
            MeshStep(StepPlan(paths, kinds, has_results, header_first)) for paths, kinds in plans
        ]
        for group, step, path in weights:
            address = positions.get(id(step.unsharded_weight))
            if address is None:
                continue
            i, position = address
            paths, kinds = plans[i]
            paths[position] = path.name, step.weight.dtype
            if path.name == "owner":
                kinds[position] = kind_of(step)
                steps[i].local[position] = tensors_of(step)
                steps[i].sources[position] = group, step, path
        return steps

    def exchange_inputs(
        self, steps: Sequence[MeshStep], after_header: bool = False
    ) -> list[list[Tensor]]:
        """Take part in the first message of each mesh; see `MeshAgreement.exchange_inputs`."""
        plans = [step.plan for step in steps]
        return self._begin(plans, [step.local for step in steps], None, after_header)

    def _begin(
        self,
        plans: Sequence[StepPlan | None],
        local: Sequence[Mapping[int, Tensors]],
        failure: Exception | None,
        after_header: bool,
    ) -> list[list[Tensor]]:
        received = []
        for mesh, plan, tensors in zip(self.meshes, plans, local, strict=True):
            try:
                received.append(
                    mesh.exchange_inputs(plan, tensors, self._names, failure, after_header)
                )
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return received

    def exchange_results(
        self,
        received: list[list[Tensor]],
        steps: Sequence[MeshStep],
        step_owned: Callable[[MeshStep, Mapping[int, WeightStep]], dict[int, Tensors]],
        failure: Exception | None,
    ) -> list[dict[int, dict[str, Tensor]]]:
        """Step the owned weights of each mesh; see `MeshAgreement.exchange_results`.

        The mesh of most processes comes last: what fails in any of them is told there.
        """
        new_values: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.meshes]
        for i in reversed(range(len(self.meshes))):
            try:
                parts, received[i] = received[i], []
                step_mesh = functools.partial(step_owned, steps[i])
                new_values[i] = self.meshes[i].exchange_results(
                    parts, steps[i].local, step_mesh, failure
                )
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return new_values
