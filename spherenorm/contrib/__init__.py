"""Bridges to other libraries, none of which the library needs: timm.

Example:
    >>> sn.contrib.register_timm.__module__
    'spherenorm.contrib.timm'
"""

from spherenorm.contrib.timm import register_timm

__all__ = ["register_timm"]
