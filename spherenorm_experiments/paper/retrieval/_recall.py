"""Recall@1: the share of queries whose nearest neighbour is of their class."""

from __future__ import annotations

import torch
from torch import Tensor

from spherenorm_experiments.paper.retrieval.listed import GALLERY, QUERY

__all__ = ["recall_at_1"]

CHUNK = 4096
"""Queries at a time."""


def recall_at_1(embeddings: Tensor, labels: Tensor, roles: Tensor) -> float:
    """The percentage of queries whose nearest image of the gallery has their class.

    An image that is both query and gallery does not find itself. Queries without an image to find
    do not count.

    Args:
        embeddings: vectors of length 1, shape (items, dimension).
        labels: classes, shape (items).
        roles: QUERY, GALLERY or BOTH, shape (items).

    Returns:
        nan if there is nothing to find.
    """
    queries, gallery = ((roles != other).nonzero()[:, 0] for other in (GALLERY, QUERY))
    hits = found = 0
    for chunk in torch.split(queries, CHUNK):
        likeness = embeddings[chunk] @ embeddings[gallery].T
        itself = chunk[:, None] == gallery
        same = (labels[chunk, None] == labels[gallery]) & ~itself
        nearest = likeness.masked_fill(itself, -torch.inf).argmax(dim=1, keepdim=True)
        hits += int(same.gather(1, nearest).sum())
        found += int(same.any(dim=1).sum())
    return 100 * hits / found if found else float("nan")
