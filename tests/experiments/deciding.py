"""Claims about numbers that are given, decided."""

from spherenorm_experiments.analysis import MARGIN, Claim, Results, evaluate


def decided(left, relation, right, name="claim", text="", **more):
    """A claim about numbers by seed, or about a number without randomness."""
    sides = (left, right if isinstance(right, float) else lambda _: right)
    return evaluate(Claim(name, text, lambda _: sides[0], relation, sides[1], **more), Results([]))


def scores(ours, baseline, margin=MARGIN, **more):
    """A claim that a score is higher than another."""
    performance = {"performance": True, "unit": "pp", "equivalent": margin}
    return decided(ours, ">", baseline, **performance | more)
