"""Transformer-XL: attention over a segment and a memory of what came before it.

`TransformerXL(267735, cutoffs=(20000, 40000, 200000))` is the base model of WikiText-103, with
151,107,538 weights, of which 41,066,400 are in the layers.

Source: Z. Dai et al., *Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context*,
2019; A. Baevski and M. Auli, *Adaptive Input Representations for Neural Language Modeling*, 2019;
T. Salimans and D. Kingma, *Weight Normalization*, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

INITIAL = 0.02
"""The standard deviation of initial weights, as in the released code."""


class TransformerXL(nn.Module):
    """A language model on windows of text.

    A window has `memory` tokens of context and then a segment. The context is read first, without
    gradients, and its hidden states are what the segment attends to besides itself: a loss is a
    function of weights and window alone, and segments may come in any order.

    With `recurrent`, training keeps the hidden states of a segment, as the original does: they are
    the memory of the next one, which so reaches `layers` times as far. They are used where each
    window of a batch follows that of the batch before, token by token; else the context is read
    anew. They are buffers, and so a part of a checkpoint.

    Args:
        vocabulary: number of tokens.
        layers, width, heads, inner: of the transformer; `inner` units between the two projections
            of its feed-forward part. The defaults are those of the base model.
        cutoffs: the first token of each cluster of rarer tokens.
        memory: tokens of context.
        recurrent: keep hidden states from one batch to the next in training.
        dropout: of embeddings, sublayers and the output.
        weight_norm: write each matrix W of the layers as g v / |v|, row by row: then the loss does
            not depend on the scale of v.
    """

    recent: Tensor
    recent_tokens: Tensor | None

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 16,
        width: int = 410,
        heads: int = 10,
        inner: int = 2100,
        cutoffs: Sequence[int] = (),
        memory: int = 150,
        recurrent: bool = False,
        dropout: float = 0.1,
        weight_norm: bool = False,
    ) -> None:
        super().__init__()
        self.memory, self.recurrent, self.width = memory, recurrent, width
        self.register_buffer("recent", None, persistent=False)
        self.register_buffer("recent_tokens", None, persistent=False)
        self.tokens = AdaptiveVocabulary(vocabulary, width, cutoffs)
        self.layers = nn.ModuleList(
            Layer(width, heads, inner, dropout, weight_norm) for _ in range(layers)
        )
        self.content_bias = nn.Parameter(INITIAL * torch.randn(heads, width // heads))
        self.position_bias = nn.Parameter(INITIAL * torch.randn(heads, width // heads))
        self.dropout = nn.Dropout(dropout)

    def forward(self, windows: Tensor) -> Tensor:
        """The loss -log p of each token of the segments.

        Args:
            windows: tokens, shape (batch, memory + length + 1): the last `length` are the targets.
                A window that ends early has -1 from there on.

        Returns:
            Shape (batch, length); 0 for a target of -1.
        """
        windows = windows.long()
        inputs = windows[:, :-1].clamp(min=0)
        context, segment = inputs[:, : self.memory], inputs[:, self.memory :]
        if self._goes_on(context):
            past = list(self.recent.unbind())
        else:
            with torch.no_grad():
                past = self.forward_segment(context)[1]
        output, memory = self.forward_segment(segment, past)
        if self.recurrent and self.training:
            self.recent, self.recent_tokens = torch.stack(memory), segment
        return self.tokens.losses(output, windows[:, self.memory + 1 :])

    def _goes_on(self, context: Tensor) -> bool:
        """True if this context ends as the segment does whose hidden states are kept."""
        if not self.training or self.recent_tokens is None:
            return False
        common = min(self.memory, self.recent_tokens.shape[1])
        return torch.equal(self.recent_tokens[:, -common:], context[:, -common:])

    def forward_segment(
        self, segment: Tensor, past: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """The output at each token of a segment, and the memory for the next segment.

        Args:
            segment: tokens, shape (batch, length).
            past: the memory, an input of each layer, of shape (batch, at most memory, width).
        """
        hidden = self.dropout(F.embedding(segment, self.tokens.table) * math.sqrt(self.width))
        reach = segment.shape[1] + (past[0].shape[1] if past else 0)
        positions = self.dropout(sinusoids(reach, self.width).to(hidden))
        memory = []
        for number, layer in enumerate(self.layers):
            context = torch.cat([past[number], hidden], dim=1) if past else hidden
            memory.append(context[:, max(0, reach - self.memory) :].detach())
            hidden = layer(hidden, context, positions, self.content_bias, self.position_bias)
        return self.dropout(hidden), memory


class Layer(nn.Module):
    """Attention with relative positions and a feed-forward part, each followed by LayerNorm."""

    def __init__(
        self, width: int, heads: int, inner: int, dropout: float, weight_norm: bool
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query = Projection(width, width, bias=False, weight_norm=weight_norm)
        self.key_value = Projection(width, 2 * width, bias=False, weight_norm=weight_norm)
        self.position = Projection(width, width, bias=False, weight_norm=weight_norm)
        self.attended = Projection(width, width, bias=False, weight_norm=weight_norm)
        self.rise = Projection(width, inner, weight_norm=weight_norm)
        self.fall = Projection(inner, width, weight_norm=weight_norm)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *attention: Tensor) -> Tensor:
        """The segment x of shape (batch, length, width), which ends where its context ends."""
        attended = self.attended(self.attend(x, *attention))
        x = self.norms[0](x + self.dropout(attended))
        risen = self.dropout(self.rise(x).relu())
        return self.norms[1](x + self.dropout(self.fall(risen)))  # type: ignore[no-any-return]

    def attend(
        self, x: Tensor, context: Tensor, positions: Tensor, content: Tensor, position: Tensor
    ) -> Tensor:
        """The values that each token of x attends to.

        Args:
            context: the hidden states that end with x, shape (batch, reach, width).
            positions: those of the distances reach - 1, ..., 0.
            content, position: what is added to queries, of shape (heads, size of a head).
        """
        length, reach = x.shape[1], context.shape[1]
        query = self.query(x).unflatten(-1, (self.heads, -1))
        distance = self.position(positions).unflatten(-1, (self.heads, -1))
        key, value = self.key_value(context).unflatten(-1, (2, self.heads, -1)).unbind(2)
        scores = torch.einsum("bihe,bjhe->bhij", query + content, key)
        by_distance = torch.einsum("bihe,jhe->bhij", query + position, distance)
        scores = (scores + relative_shift(by_distance)) / math.sqrt(query.shape[-1])
        visible = torch.ones(length, reach, dtype=torch.bool, device=x.device).tril(reach - length)
        shares = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        return torch.einsum("bhij,bjhe->bihe", shares, value).flatten(2)


def relative_shift(scores: Tensor) -> Tensor:
    """Turn columns by distance into columns by key.

    Row i of a segment of n tokens with a reach of m has the score of distance m - 1 - j in column
    j, and gets it at the key that is so far away, j' = j - (n - 1 - i). Keys in the future get
    entries of no meaning.

    Args:
        scores: shape (..., n, m).
    """
    rows = scores.shape[-2]
    padded = F.pad(scores, (1, 0)).flatten(-2)[..., rows:]
    return padded.reshape(scores.shape)


def sinusoids(reach: int, width: int) -> Tensor:
    """Sines and cosines of the distances reach - 1, ..., 0; shape (reach, width)."""
    distances = torch.arange(reach - 1, -1, -1.0)
    angles = distances[:, None] * 10000 ** -(torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Projection(nn.Module):
    """W x + b, where W may be g v / |v|, row by row, with gains g that start as |v|."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, weight_norm: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(INITIAL * torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.gain = nn.Parameter(self.weight.detach().norm(dim=1)) if weight_norm else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.gain is not None:
            weight = weight * (self.gain / weight.norm(dim=1))[:, None]
        return F.linear(x, weight, self.bias)


class AdaptiveVocabulary(nn.Module):
    """Embedding and softmax with the same weights, the rare tokens in clusters of their own.

    p(token) = p(cluster) p(token | cluster). The first cluster's tokens share a softmax with the
    other clusters, so that most targets need no other.

    Args:
        count: tokens, from the most frequent to the rarest.
        width: of an embedding, and of a hidden state.
        cutoffs: the first token of each cluster but the first; they rise.
    """

    def __init__(self, count: int, width: int, cutoffs: Sequence[int] = ()) -> None:
        super().__init__()
        self.spans = list(pairwise((0, *cutoffs, count)))
        self.table = nn.Parameter(INITIAL * torch.randn(count, width))
        self.bias = nn.Parameter(torch.zeros(count))
        self.clusters = Projection(width, len(cutoffs)) if cutoffs else None

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p of the targets, of their shape; 0 for a target of -1.

        Args:
            hidden: shape (..., width).
            targets: tokens, or -1.
        """
        rows, wanted = hidden.flatten(0, -2), targets.flatten()
        n_frequent = self.spans[0][1]
        logits = F.linear(rows, self.table[:n_frequent], self.bias[:n_frequent])
        if self.clusters is not None:
            logits = torch.cat([logits, self.clusters(rows)], dim=-1)
        common = logits.log_softmax(dim=-1)  # of the first cluster's tokens and the other clusters
        cutoffs = torch.tensor([start for start, _ in self.spans[1:]], device=wanted.device)
        cluster = torch.bucketize(wanted, cutoffs, right=True)
        column = torch.where(cluster > 0, n_frequent + cluster - 1, wanted.clamp(min=0))
        losses = -common.gather(1, column[:, None])[:, 0]
        for number, (start, stop) in enumerate(self.spans[1:], start=1):
            # With no target in it, a cluster still takes part: its gradient is 0, not missing.
            inside = (cluster == number).nonzero()[:, 0]
            logits = F.linear(rows[inside], self.table[start:stop], self.bias[start:stop])
            cluster_loss = F.cross_entropy(logits, wanted[inside] - start, reduction="none")
            losses = losses.index_add(0, inside, cluster_loss)
        return losses.masked_fill(wanted < 0, 0.0).view_as(targets)
