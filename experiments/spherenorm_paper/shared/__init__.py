"""The parts that several experiments of the paper share: glyphs, layers, small networks."""

TASKS = {
    "digits": "digits:Digits",
    "network": "network:Network",
    "cosine": "toys:Cosine",
    "rosenbrock": "toys:Rosenbrock",
}
LAYOUTS = {"imagenet": "imagenet:LAYOUT"}
