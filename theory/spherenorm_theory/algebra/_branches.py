"""The sizes of tensors that Python code decides by: `if weight.shape[1] > 64`.

No record of a step shows such a branch, so a step is run on sizes that note what is asked of them.
Tensors that hold sizes are followed in `_constants`.

Torch's own symbolic sizes (`ShapeEnv`, torch 2.13) do not replace this. Of 36 functions
that ask a size in their own ways, three escape them unnoticed (`str(n)`, `isinstance(n, int)`, a
question of strides), three raise (a size as a key, `nbytes`, `np.sqrt`), and four that hold for
every size become a law of one (`math.sqrt(n)`, `len(w)`, `w.shape.numel()`, `torch.tensor(n)`).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import linecache
import math
import operator
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import spherenorm
from spherenorm.record import TORCH
from spherenorm_theory.algebra._constants import COMPARISONS, Constants

LIBRARY = Path(spherenorm.__file__).parent


@dataclass(frozen=True)
class Branch:
    """A question that code asked of a size, with the answer.

    Attributes:
        line: of source.
        question: such as "> 64"; empty where the size became a plain number, which code may branch
            on unseen.
        answer: the truth value, or the plain number.
        own: the library asked, such as if a gradient has the shape of its weight.
    """

    line: str
    question: str
    answer: Any
    own: bool = False

    @property
    def opposite(self) -> Branch:
        """The branch with the other truth value."""
        return replace(self, answer=not self.answer)

    @property
    def settled(self) -> bool:
        """True if the answer is the same for every weight.

        Sizes are positive, and those of a gradient are the weight's.
        """
        return (self.question, self.answer) in _SETTLED

    def __str__(self) -> str:
        if not self.question:
            return f"a size becomes the plain number {self.answer} in {self.line}"
        return f"(a size {self.question}) is {self.answer} in {self.line}"


_SETTLED = {
    *(("< 1", False), (">= 1", True), ("> 0", True), ("<= 0", False), ("!= 0", True)),
    *(("== 0", False), ("== another", True), ("!= another", False)),
}


_LOCK = threading.RLock()
"""Held while functions of the process are patched."""


class Branches(TorchFunctionMode):
    """Notes the branches on sizes in the code that runs within; one thread at a time.

    Example:
        >>> with Branches() as branches:
        ...     wide = torch.ones(3, 5).shape[1] > 64
        >>> branches.found[0].question, branches.found[0].answer
        ('> 64', False)
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Branch] = []
        self._constants = Constants()

    def __enter__(self) -> Branches:
        _LOCK.acquire()
        # These would make plain numbers, and no code is more common than a division by sqrt(d).
        self._patches = contextlib.ExitStack()
        self._patches.enter_context(patch.object(math, "sqrt", _root_of(math.sqrt)))
        self._patches.enter_context(patch.object(builtins, "len", _length_by(len)))
        for owner, names, at in _LISTED:
            for name in names:
                listed = _listed(getattr(owner, name), at)
                self._patches.enter_context(patch.object(owner, name, listed))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()
        _LOCK.release()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        sizes: list[_Size] = []
        result = func(*_plain(args, sizes), **_plain(kwargs or {}, sizes))
        if sizes:
            self._forget(sizes)
        if func in _PLAIN:
            self.found.append(_branch(_PLAIN[func], result))
        if func not in _READS:
            decided = self._constants.follow(func, args, kwargs or {}, sizes, result)
            self.found += [_branch(question, answer) for question, answer in decided]
            return result
        if isinstance(result, tuple):
            return _Shape(_Size(length, self.found) for length in result)
        return _Size(result, self.found)

    def _forget(self, sizes: Sequence[_Size]) -> None:
        """Drop the notes of torch itself, which asks whether its arguments are sizes."""
        made = {id(note) for size in sizes for note in size.notes}
        while self.found and id(self.found[-1]) in made:
            self.found.pop()


_READS = {
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
    torch.Tensor.nbytes.__get__,  # type: ignore[attr-defined]
    *(torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement, torch.numel),
    torch.Tensor.stride,
}
_PLAIN = {torch.Tensor.__len__: "", torch.Tensor.is_contiguous: "of a contiguous tensor"}
"""Reads whose results cannot be anything but plain."""


_LISTED = (
    (torch, ("zeros", "ones", "empty", "rand", "randn"), 0),
    (torch.Tensor, ("new_zeros", "new_ones", "new_empty", "expand"), 1),
)
"""Functions that take a size of plain numbers as `zeros(n, 1)`, any other as `zeros((n, 1))`."""


def _listed(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The function, which gets the arguments from position `at` on as one size."""

    @functools.wraps(function)
    def method(*args: Any, **options: Any) -> Any:
        apart = len(args) > at + 1
        return function(*args[:at], args[at:], **options) if apart else function(*args, **options)

    return method


def _root_of(sqrt: Callable[[Any], float]) -> Callable[[Any], Any]:
    """The root of a size is one too."""
    return lambda x: _Size(sqrt(x.value), x.found) if isinstance(x, _Size) else sqrt(x)


def _length_by(length: Callable[[Any], int]) -> Callable[[Any], Any]:
    """The length of a tensor is its first size."""
    return lambda x: x.shape[0] if isinstance(x, torch.Tensor) and x.ndim else length(x)


class _Shape(tuple[Any, ...]):
    """Sizes in the place of `torch.Size`."""

    def numel(self) -> Any:
        """Their product."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Shape(found) if isinstance(index, slice) else found


class _Size:
    """A number computed from sizes, which notes how it is compared; arithmetic gives another one.

    It is no `int`, which arithmetic would take without a note.
    """

    __hash__: ClassVar[Any]

    def __init__(self, value: float, found: list[Branch]) -> None:
        self.value, self.found = value, found
        self.notes: list[Branch] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the number, for `isinstance`."""
        return type(self.value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """So that torch takes it as an operand."""
        return func(*_plain(args), **_plain(kwargs or {}))

    def __bool__(self) -> bool:
        return self.ask("!= 0", bool(self.value))

    def ask(self, question: str, answer: bool) -> bool:
        """Note a question."""
        self.found.append(_branch(question, answer))
        return answer

    def become(self, value: Any) -> Any:
        """Note that a plain number is made of the size."""
        self.notes.append(_branch("", value))
        self.found.append(self.notes[-1])
        return value

    def sqrt(self) -> _Size:
        """The root, for numpy, which asks an object for its own."""
        return _Size(math.sqrt(self.value), self.found)

    def __getattr__(self, name: str) -> Any:
        """Other attributes of a number: `bit_length`, `real`; and functions of numpy, as `log`."""
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.become(self.value)
        if not hasattr(value, name) and hasattr(np, name):
            return functools.partial(getattr(np, name), value)
        return getattr(value, name)


def _comparison(symbol: str, compare: Callable[[Any, Any], Any]) -> Callable[[_Size, Any], Any]:
    def method(self: _Size, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented  # torch compares, and `Branches` sees it
        against = "another" if isinstance(other, _Size) else repr(other)
        return self.ask(f"{symbol} {against}", bool(compare(self.value, _plain(other))))

    return method


def _arithmetic(
    apply: Callable[[Any, Any], Any], swap: bool, steps: bool
) -> Callable[[_Size, Any], Any]:
    def method(self: _Size, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented  # torch computes, and `Branches` sees it
        if not isinstance(other, (int, float, _Size)):
            value = self.become(self.value)  # to repeat a list, say
            return apply(other, value) if swap else apply(value, other)
        pair = (_plain(other), self.value) if swap else (self.value, _plain(other))
        value = apply(*pair)
        if steps and not (apply is operator.floordiv and pair[0] % pair[1] == 0):
            self.become(value)  # n // 100 is one number for many sizes
        return _Size(value, self.found)

    return method


def _escape(convert: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: _Size, *options: Any) -> Any:
        self.become(self.value)
        return convert(self.value, *options)

    return method


_SMOOTH = ("add", "sub", "mul", "truediv", "pow")
_STEPS = ("floordiv", "mod", "and", "or", "xor", "lshift", "rshift")
_CONVERSIONS: dict[str, Callable[..., Any]] = {
    **{"int": int, "float": float, "index": operator.index, "round": round, "hash": hash},
    **{"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "abs": abs},
    **{"str": str, "repr": repr, "format": format, "divmod": divmod},
}

for _symbol, _name in COMPARISONS.items():
    setattr(_Size, f"__{_name}__", _comparison(_symbol, getattr(operator, _name)))
for _name in (*_SMOOTH, *_STEPS):
    _apply, _steps = getattr(operator, f"__{_name}__"), _name in _STEPS
    setattr(_Size, f"__{_name}__", _arithmetic(_apply, False, _steps))
    setattr(_Size, f"__r{_name}__", _arithmetic(_apply, True, _steps))
for _name in ("neg", "pos"):
    _apply = getattr(operator, _name)
    setattr(_Size, f"__{_name}__", lambda self, apply=_apply: _Size(apply(self.value), self.found))
for _name, _convert in _CONVERSIONS.items():
    setattr(_Size, f"__{_name}__", _escape(_convert))


def _plain(x: Any, sizes: list[_Size] | None = None) -> Any:
    """Plain numbers in the place of sizes, and a tuple in that of a shape; `sizes` gathers them."""
    kind = type(x)
    if kind is _Size:
        if sizes is not None:
            sizes.append(x)
        return x.value
    if kind is _Shape:
        return torch.Size(_plain(each, sizes) for each in x)
    if kind in (tuple, list):
        return kind(_plain(each, sizes) for each in x)
    if kind is dict:
        return {name: _plain(each, sizes) for name, each in x.items()}
    if kind is slice:
        return slice(*(_plain(each, sizes) for each in (x.start, x.stop, x.step)))
    return x


def _branch(question: str, answer: Any) -> Branch:
    """The branch of the line that asked, outside of torch, of Python's library and of this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    file, number = frame.f_code.co_filename, frame.f_lineno
    line = f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"
    return Branch(line, question, answer, Path(file).is_relative_to(LIBRARY))


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith((TORCH, "<frozen"))
