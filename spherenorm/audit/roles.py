"""`roles`: the role of each parameter in a model, measured in one forward pass.

`UseTracer` records every operation of the pass below autograd. A tensor that parameters and
constants make (a transpose, a slice, a normalized weight) stands for these parameters; the
operation in which it meets the batch is their use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spherenorm.audit.audited_model import AuditedModel, Point, find_tensors, unwrap
from spherenorm.support import columns
from spherenorm.torch_internals import TorchDispatchMode, pytree

RoleName = Literal[
    "matrix",
    "head",
    "embedding",
    "tied",
    "vector",
    "convolution",
    "experts",
    "other",
    "unmeasured",
]
ROLES: tuple[RoleName, ...] = get_args(RoleName)
MATRIX_ROLES: tuple[RoleName, ...] = ("matrix", "convolution", "experts")
"""The roles for which Muon and the recipes that hold a norm are made."""

_FACTOR_INDICES = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "_grouped_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), (1, 2)),
}
"""The argument indices of the two factors, for each operation that multiplies matrices."""
_RECURRENT_LAYERS = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"}
_LOOKUPS = {"embedding", "embedding_renorm_", "_embedding_bag", "_embedding_bag_forward_only"}
_INDEXING = {"index", "index_select", "gather"}
_JOINS = {"cat", "stack"}


@dataclass(frozen=True)
class Role:
    """The role of one parameter in a model.

    Attributes:
        name, shape: name and shape of the parameter.
        role: "matrix", a hidden matrix; "head", a matrix or convolution whose product is an output;
            "embedding", whose rows are looked up; "tied", an embedding that is a matrix, too;
            "vector", which acts entry by entry; "convolution"; "experts", a stack of matrices
            along dimension 0; "other", which acts in another way; "unmeasured".
        reason: the reason for the role, in words.
        fan_in: the dimensions of the parameter that its products sum over, as they were seen: (1,)
            of `nn.Linear`, (0,) of `x @ W`. None if it has no such product, or the product took a
            copy of the parameter, or two products sum over different dimensions.

    Example:
        >>> result = sn.roles(torch.nn.Linear(4, 3), torch.randn(8, 4))
        >>> result[0].name, result[0].role, result[0].reason
        ('weight', 'head', 'a factor of a product (addmm); its product is an output')
        >>> result[0].fan_in
        (1,)
    """

    name: str
    shape: tuple[int, ...]
    role: RoleName
    reason: str
    fan_in: tuple[int, ...] | None = None


class Roles(tuple[Role, ...]):
    """The `Role` of each parameter, in the model's order; prints as a table.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        >>> result = sn.roles(model, torch.randn(8, 4))
        >>> [parameter.role for parameter in result]
        ['matrix', 'vector', 'head', 'vector']
    """

    role_names: ClassVar[tuple[RoleName, ...]] = ROLES
    """The roles that a parameter may have."""

    def groups(
        self,
        model: nn.Module,
        options: Mapping[RoleName | tuple[RoleName, ...], Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return param_groups for any `torch.optim` optimizer: one per entry, and one for the rest.

        Args:
            model: the model of these roles.
            options: entries of a group, such as `lr`, by a role or a tuple of roles.

        Returns:
            The groups in this order, the last without options; each may be empty. The first ones
            may go to one optimizer, and the others to another.

        Raises:
            ValueError: there is no such role, or two entries name it; the roles are of another
                model.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            >>> result = sn.roles(model, torch.randn(8, 4))
            >>> options = {"matrix": {}, "vector": {"lr": 0.1}}
            >>> matrices, vectors, remaining = result.groups(model, options)
            >>> matrices["param_names"], vectors["lr"], remaining["param_names"]
            (['0.weight'], 0.1, ['2.weight'])
            >>> optimizers = torch.optim.Muon([matrices]), torch.optim.AdamW([vectors, remaining])
        """
        parameters = dict(model.named_parameters())
        shapes = {name: tuple(x.shape) for name, x in parameters.items()}
        if {parameter.name: parameter.shape for parameter in self} != shapes:
            raise ValueError("the roles are of another model: its parameters have other names")
        group_index: dict[str, int] = {}
        for index, key in enumerate(options):
            for role in (key,) if isinstance(key, str) else key:
                if role not in ROLES or role in group_index:
                    raise ValueError(
                        f"options must name each role once, of {', '.join(ROLES)}, got {role!r}"
                    )
                group_index[role] = index
        groups: list[dict[str, Any]] = [
            {"params": [], "param_names": [], **entries} for entries in (*options.values(), {})
        ]
        for parameter in self:
            group = groups[group_index.get(parameter.role, len(options))]
            group["params"].append(parameters[parameter.name])
            group["param_names"].append(parameter.name)
        return groups

    def __str__(self) -> str:
        rows = [("parameter", "shape", "role", "why")]
        for parameter in self:
            shape = format_shape(parameter.shape)
            rows.append((parameter.name, shape, parameter.role, parameter.reason))
        return columns(rows)

    __repr__ = __str__


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as a cell of a table: "4 x 3"."""
    return " x ".join(map(str, shape)) or "()"


def roles(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Any] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Roles:
    """Measure the role of each parameter in one forward pass; names are not read.

    - **embedding**: rows are looked up by indices; **tied**: and it is a factor of a product, too.
    - **matrix**: a factor of a product with what depends on the batch, or with constants before the
      result meets it, as of coordinates. **head**: a matrix, or a
      convolution, whose product reaches an output, and neither another weight of two or more
      dimensions nor a sum with other products comes between.
    - **experts**: of three dimensions, a factor of products that sum over 1 or 2 of them alone.
    - **convolution**; one with a filter for each channel by itself is a **vector**.
    - **vector**: of at most one dimension, or it acts entry by entry.
    - **other**: of three or more dimensions, and a product sums over several of them.

    A parameter that the pass does not reach has the role of its module, where that has one;
    otherwise it is **unmeasured**.

    Args:
        model: the model; a copy runs in its present mode (train or eval), in `dtype`.
        batch, loss, dtype: the arguments of `audit`.

    Raises:
        ValueError: the model cannot be copied.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 8))
        >>> [parameter.role for parameter in roles(model, torch.arange(8))]
        ['embedding', 'matrix', 'vector', 'head', 'vector']
    """
    model = unwrap(model)
    with torch.inference_mode(False), torch.enable_grad():
        audited = AuditedModel(model, batch, loss, dtype)
        tracer = UseTracer(audited.parameters, find_tensors(audited.batch))
        audited.outputs_at(Point(), tracer=tracer)
        return roles_from_uses(model, tracer)


def roles_from_uses(model: nn.Module, tracer: UseTracer) -> Roles:
    """Return the roles of a model's parameters, from a traced pass of its copy."""
    owners = {id(x): module for module in model.modules() for x in module._parameters.values()}
    result = []
    for name, weight in model.named_parameters():
        role: tuple[RoleName, str] | None = ("vector", f"{weight.ndim}-d")
        if weight.ndim > 1:
            role = _choose_role(tracer.uses[name], is_output=name in tracer.output_matrices)
        if role is None:
            role = _role_of_unused(weight, owners[id(weight)])
        fan_in = (0,) if role[0] == "embedding" else tracer.fan_in.get(name)
        result.append(Role(name, tuple(weight.shape), *role, fan_in))
    return Roles(result)


def _choose_role(uses: Mapping[RoleName, str], is_output: bool) -> tuple[RoleName, str] | None:
    """Return the role of a parameter and the reason; None if it was not used.

    Args:
        uses: the reason for each role in which the parameter was used.
        is_output: whether its product is an output.
    """
    for role in (*MATRIX_ROLES, "other"):
        if role in uses:
            if "embedding" in uses:
                return "tied", f"{uses['embedding']}; {uses[role]}"
            if is_output:
                return "head", f"{uses[role]}; its product is an output"
            return role, uses[role]
    return next(((role, uses[role]) for role in ROLES if role in uses), None)


def _role_of_unused(weight: Tensor, owner: nn.Module) -> tuple[RoleName, str]:
    """Return the role of a parameter that no operation has used, by its module."""
    if weight.ndim > 2 and sum(length > 1 for length in weight.shape) < 2:
        return "vector", f"not used on this batch; {weight.ndim}-d"
    reason = f"not used on this batch; by its module, {type(owner).__name__}"
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        return "embedding", reason
    if hasattr(owner, "kernel_size") and weight.ndim > 2:
        return ("vector" if weight.shape[1] == 1 else "convolution"), reason
    return ("matrix" if "Linear" in type(owner).__name__ else "unmeasured"), reason


@dataclass(frozen=True)
class _Origin:
    """The parameters and the data that a tensor is a function of.

    Attributes:
        weights: names of the parameters that it is a function of, beside constants.
        depends_on_batch: it depends on the batch, or on a row that was looked up.
        last_matrices: if it depends on the batch, the matrices whose products it is a function of
            with no other matrix in between; None if no parameter has acted on it.
        uses: for weights that have acted on constants, the role and its reason.
    """

    weights: frozenset[str] = frozenset()
    depends_on_batch: bool = False
    last_matrices: frozenset[str] | None = None
    uses: Mapping[str, tuple[RoleName, str]] = field(default_factory=dict, compare=False)


_CONSTANT = _Origin()
_BATCH = _Origin(depends_on_batch=True)


class _DispatchModeWithoutDynamo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import Dynamo, which takes 1.5 s, to keep itself out of it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class UseTracer(_DispatchModeWithoutDynamo):  # type: ignore[no-untyped-call]
    """A dispatch mode that follows parameters and batch through a forward pass.

    Args:
        parameters: parameters by name.
        batch: the tensors that the model is given.

    Attributes:
        uses: for each parameter, the reason for each role in which it was used.
        output_matrices: the matrices whose products are outputs, with no other weight and no sum
            with other products in between; set by `finish`.
        fan_in: for each parameter with a product, the dimensions that its products sum over; None
            where they could not be seen.
    """

    def __init__(self, parameters: Mapping[str, Tensor], batch: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.uses: dict[str, dict[RoleName, str]] = {name: {} for name in parameters}
        self.output_matrices = frozenset[str]()
        self.fan_in: dict[str, tuple[int, ...] | None] = {}
        self._parameters = dict(parameters)
        self._shapes = {name: tuple(weight.shape) for name, weight in parameters.items()}
        # Matrices whose products another weight has taken, or a sum with other products.
        self._inner_matrices: set[str] = set()
        self._origins: Any = WeakTensorKeyDictionary()
        # The origins of storages that were written in place. The storage is kept, so that no other
        # one gets its address.
        self._written_storages: dict[int, tuple[Any, _Origin]] = {}
        strided = [x for x in parameters.values() if x.layout is torch.strided]
        self._parameter_storages = {x.untyped_storage()._cdata for x in strided}
        for x in batch:
            self._origins[x] = _BATCH
        for name, x in parameters.items():
            self._origins[x] = _Origin(frozenset((name,)))

    def finish(self, outputs: Iterable[Tensor]) -> None:
        """Set `output_matrices` from the outputs of the pass."""
        last_matrices = _union(self._origin(x).last_matrices or () for x in outputs)
        self.output_matrices = last_matrices - self._inner_matrices

    def _origin(self, x: Tensor) -> _Origin:
        """Return the origin of a tensor; a write to its storage makes it depend on the batch."""
        origin: _Origin = self._origins.get(x, _CONSTANT)
        if self._written_storages and not origin.depends_on_batch and x.layout is torch.strided:
            key = x.untyped_storage()._cdata
            if key in self._written_storages:
                return self._written_storages[key][1]
        return origin

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        inputs = _tensor_leaves((args, kwargs))
        operands = [(x, self._origin(x)) for x in inputs]
        result = func(*args, **kwargs)
        outputs = _tensor_leaves(result)
        in_batch = any(origin.depends_on_batch for _, origin in operands)
        indexes_weight = name in _INDEXING and bool(operands[0][1].weights)
        is_lookup = name in _LOOKUPS
        if indexes_weight and in_batch and operands[0][0].ndim == 2:
            is_lookup = True
        if is_lookup or (in_batch and not indexes_weight):
            origins = [self._use_with_batch(name, args, operands, is_lookup)] * len(outputs)
        else:
            origins = self._use_with_constants(name, args, operands, outputs)
        for x, origin in zip(outputs, origins, strict=True):
            written_in_place = any(x is other for other in inputs)
            if not written_in_place or x.layout is not torch.strided:
                self._origins[x] = origin
                continue
            storage = x.untyped_storage()
            if storage._cdata in self._parameter_storages:
                continue  # A parameter that is written remains a parameter.
            self._origins[x] = origin
            if origin.depends_on_batch:
                self._written_storages[storage._cdata] = storage, origin
        return result

    def _use_with_batch(
        self,
        name: str,
        args: tuple[Any, ...],
        operands: Sequence[tuple[Tensor, _Origin]],
        is_lookup: bool,
    ) -> _Origin:
        """Record the uses of weights in an operation with the batch; return the result's origin."""
        data = [(x, origin) for x, origin in operands if origin.depends_on_batch]
        matrices: set[str] = set()
        for x, origin in operands:
            if origin.depends_on_batch:
                continue
            for weight in origin.weights:
                shape = self._shapes[weight]
                role, reason = _role_in_operation(name, args, x, shape, is_lookup)
                is_matrix = len(shape) > 1 and role in (*MATRIX_ROLES, "other")
                if is_matrix:
                    self._record_fan_in(weight, name, args, x)
                if is_matrix and name not in _RECURRENT_LAYERS:
                    matrices.add(weight)
                self._record_use(weight, origin, role, reason)
        last_matrices = [x.last_matrices for _, x in data if x.last_matrices is not None]
        if is_lookup:
            return replace(_BATCH, last_matrices=frozenset())
        if matrices:
            self._inner_matrices.update(*last_matrices)
            return replace(_BATCH, last_matrices=frozenset(matrices))
        combined = _union(last_matrices)
        adds_losses = all(x.ndim == 0 for x, _ in data)
        if len(set(last_matrices)) > 1 and name not in _JOINS and not adds_losses:
            self._inner_matrices |= combined
            combined = frozenset()
        has_weights = any(x.weights and not x.depends_on_batch for _, x in operands)
        return replace(_BATCH, last_matrices=combined if last_matrices or has_weights else None)

    def _record_use(self, weight: str, origin: _Origin, role: RoleName, reason: str) -> None:
        """Record a use of a weight, or of what the weight and constants have made.

        If the weight has acted as a matrix on constants, that is its role, and not the entrywise
        use of the result.
        """
        if role == "vector":
            role, reason = origin.uses.get(weight, (role, reason))
        self.uses[weight].setdefault(role, reason)

    def _record_fan_in(self, weight: str, name: str, args: tuple[Any, ...], x: Tensor) -> None:
        """Record the dimensions of a weight that an operation sums over."""
        dims = _contracted_dims(name, args, x, self._parameters[weight])
        if self.fan_in.setdefault(weight, dims) != dims:
            self.fan_in[weight] = None

    def _use_with_constants(
        self,
        name: str,
        args: tuple[Any, ...],
        operands: Sequence[tuple[Tensor, _Origin]],
        outputs: Sequence[Tensor],
    ) -> list[_Origin]:
        """Return the origin of each result of parameters and constants alone.

        A result stands for the operands of its shape, such as the weight that a norm divides; the
        other operands, such as the lengths of weight normalization, act on it as vectors.
        """
        weights = [(x, origin) for x, origin in operands if origin.weights]
        new_uses: dict[str, tuple[RoleName, str]] = {}
        for x, origin in weights:
            for weight in origin.weights:
                use = _role_in_operation(name, args, x, self._shapes[weight], is_lookup=False)
                if use[0] != "vector":
                    new_uses[weight] = use
                    self._record_fan_in(weight, name, args, x)
        combines_all = len(weights) == 1 or new_uses or name in _FACTOR_INDICES or name in _JOINS
        origins = []
        for output in outputs:
            sources = [(x, y) for x, y in weights if combines_all or x.shape == output.shape]
            sources = sources or weights
            uses = dict(new_uses)
            for _, origin in sources:
                uses |= origin.uses
            origins.append(_Origin(_union(origin.weights for _, origin in sources), uses=uses))
        if origins:
            for _, origin in weights:
                for weight in origin.weights - origins[0].weights:
                    self._record_use(weight, origin, "vector", f"acts on a weight ({name})")
        return origins


def _role_in_operation(
    name: str, args: tuple[Any, ...], x: Tensor, shape: tuple[int, ...], is_lookup: bool
) -> tuple[RoleName, str]:
    """Return the role of a weight in one operation, and the reason.

    Args:
        name: name of the operation.
        args: the operation's positional arguments.
        x: the operand, which is the weight or made of it.
        shape: shape of the weight.
        is_lookup: whether the operation looks up rows.
    """
    if is_lookup:
        return "embedding", f"its rows are looked up ({name})"
    if "convolution" in name and len(args) > 1 and args[1] is x:
        if x.shape[1] == 1 and args[-1] > 1:
            return "vector", f"a filter for each channel by itself, no matrix ({name})"
        return "convolution", f"filters ({name})"
    if name in _RECURRENT_LAYERS:
        return "matrix", f"of a recurrent layer ({name})"
    if name == "_trilinear":
        return "other", f"a factor of a product of three ({name})"
    factors = [args[index] for index in _FACTOR_INDICES.get(name.removesuffix("_"), ())]
    if x.ndim < 2 or not any(x is factor for factor in factors):
        return "vector", f"acts entry by entry ({name})"
    if len(shape) == 2:
        return "matrix", f"a factor of a product ({name})"
    lengths = [length for length in x.shape if length > 1]
    if sorted(lengths) == sorted((shape[0], math.prod(shape[1:]))):
        return "matrix", f"dimension 0 by all others ({name})"
    if len(shape) == 3 and sorted(lengths[-2:]) == sorted(shape[1:]):
        return "experts", f"a matrix for each index of dimension 0 ({name})"
    return "other", f"neither one matrix, dimension 0 by all others, nor a stack of them ({name})"


def _contracted_dims(
    name: str, args: tuple[Any, ...], x: Tensor, weight: Tensor
) -> tuple[int, ...] | None:
    """Return the dimensions of a weight that an operation sums over; None if they are not seen.

    A factor that is a view of the weight tells them by its strides: the summed dimension of the
    factor runs through the same memory as these dimensions of the weight.

    Args:
        name, args: the operation and its positional arguments.
        x: the operand, which is the weight or made of it.
        weight: the parameter.
    """
    if name in _RECURRENT_LAYERS:
        return (1,)
    if "convolution" in name:
        is_transposed = len(args) > 6 and args[6] is True
        first = (0,) if is_transposed else (1,)
        return (*first, *range(2, weight.ndim))
    if x.layout is not torch.strided or weight.layout is not torch.strided:
        return None
    if x.untyped_storage()._cdata != weight.untyped_storage()._cdata:
        return None
    indices = _FACTOR_INDICES.get(name.removesuffix("_"))
    if indices is None:
        return None
    summed = x.ndim - 1 if args[indices[0]] is x else x.ndim - 2
    if summed < 0:
        return None
    stride, extent = x.stride(summed), x.shape[summed] * x.stride(summed)
    dims = tuple(
        dim
        for dim, length in enumerate(weight.shape)
        if length > 1 and weight.stride(dim) >= stride and weight.stride(dim) * length <= extent
    )
    return dims if math.prod(weight.shape[dim] for dim in dims) == x.shape[summed] else None


def _union(sets: Iterable[Iterable[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _tensor_leaves(nested: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(nested) if isinstance(x, Tensor)]
