"""Signatures and annotations of a user's functions and classes, read without evaluating them.

Python 3.14 evaluates an annotation when it is read, so that a name which only type checkers
import, or which is defined further down, would raise a NameError.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return `inspect.signature(function)`; an annotation may name what is not defined."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def annotated_names(cls: type) -> frozenset[str]:
        """Return the names that the class annotates itself, without those of its bases."""
        return frozenset(get_annotations(cls, format=Format.FORWARDREF))

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return `inspect.signature(function)`; an annotation may name what is not defined."""
        return inspect.signature(function)

    def annotated_names(cls: type) -> frozenset[str]:
        """Return the names that the class annotates itself, without those of its bases."""
        return frozenset(inspect.get_annotations(cls))
