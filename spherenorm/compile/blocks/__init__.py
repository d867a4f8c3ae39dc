"""A step by torch's own operations, in blocks that stay in cache."""

from spherenorm.compile.blocks._step import BlockedStep

__all__ = ["BlockedStep"]
