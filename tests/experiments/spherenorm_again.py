"""A recipe of a name that another module has too."""

from spherenorm_tiny import careful

__all__ = ["careful"]
