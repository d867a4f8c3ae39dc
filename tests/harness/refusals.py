"""Refusals: an error names the argument, its value and the remedy; its wording is free."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refuses(*named: object, by: type[Exception] = ValueError) -> Iterator[None]:
    """Expect an error that names all of these.

    Args:
        named: the argument, its value, and names that the remedy has: each as `str` or `repr`
            writes it.
        by: the type of the error.
    """
    with pytest.raises(by) as caught:
        yield
    message = str(caught.value)
    missing = [each for each in named if str(each) not in message and repr(each) not in message]
    assert not missing, f"the error does not name {missing}: {message}"
