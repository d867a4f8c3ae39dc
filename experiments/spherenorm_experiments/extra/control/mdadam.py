"""Adam with magnitude and direction apart: in a module of its own, which alone decides its runs."""

from __future__ import annotations

from spherenorm import Chain, Scalar, chain
from spherenorm import rules as r
from spherenorm.recipes import adamh


def mdadam(
    lr: Scalar = 0.01,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    gain_ratio: Scalar = 0.1,
) -> Chain:
    """Magnitude and direction decoupled, with Adam: W = diag(a) V diag(b), where `adamh` steps V.

    The gains a and b are those of `mdmuon`: Adam's, with gain_ratio times the learning rate of V.

    Source: Hägele et al. 2026, arXiv:2606.25971; Wen et al. 2026 (Hyperball), arXiv:2606.16899.
    """
    rows, columns = (
        chain(r.AdaptiveMoments(*betas, eps=eps, name=name), r.StepSize(lr * gain_ratio))
        for name in ("gain", "column_gain")
    )
    inner = r.Gain(adamh(lr, betas, eps), columns, "dim=1", "one", buffer="column_gain")
    return chain(r.Gain(inner, rows, "channel", "one"))
