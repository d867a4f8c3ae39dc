"""A chain as one file of plain torch, for a contest that allows no dependency, and its test.

    python examples/track3.py               # two minutes on two cores; writes braked_muon.py
    python examples/track3.py --calibrate   # measures TARGET and SIGMA anew

The contest is a small copy of track 3 of modded-nanogpt: the model, the data and the batch are
fixed, and whoever reaches the target loss in the fewest steps wins. The entry is Muon with the
radial brake of that track's record 29 (without its floor), written as a chain and exported. Below,
`run` uses only torch and the exported file.

The test is the track's: the mean loss of N runs counts as below the target if

    (TARGET - mean) sqrt(N) >= 3.09 SIGMA,    p < 0.001, one-sided.

It is a z test with a known standard deviation. SIGMA is measured once, on the baseline, so that no
entry can win by a lucky spread, and few runs suffice. Seeds, N and STEPS are fixed before the runs:
whoever adds seeds until the test passes, or tries many numbers of steps, has another p-value.

    braked_muon.py: 162 lines of plain torch
    8 runs of 300 steps: mean 2.0821; AdamW, 400: 2.1296
    z = 9.73, p = 1.1e-22: the target is reached
"""

import argparse
import importlib.util
import math
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn
from spherenorm import rules as r

TARGET, SIGMA = 2.1296, 0.0138
"""Of AdamW after BASELINE_STEPS steps: mean and standard deviation over 16 seeds, in nats."""
BASELINE_STEPS, STEPS, RUNS = 400, 300, 8
CONTEXT, BATCH = 16, 256


@sn.recipe
def braked_muon(lr=0.02, momentum=0.95, outward=0.5):
    """Muon whose steps lengthen a matrix by half of their radial part, and by nothing else."""
    return sn.chain(
        r.InterpolatedAverage(momentum**2, momentum),  # Nesterov
        r.Orthogonalize(),
        r.RadialProjection("layer", outward),
        r.StepSize(lr),
        r.FixedNorm("layer", "intended"),
    )


def exported(path):
    """Write the chain as a file of plain torch, and return the class that the file defines."""
    path.write_text(sn.export(braked_muon, "BrakedMuon"))
    assert "import spherenorm" not in path.read_text()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BrakedMuon


class Model(nn.Module):
    """The next byte from the last 16: two hidden layers before RMSNorm."""

    def __init__(self, width):
        super().__init__()
        self.bytes = nn.Embedding(128, 16)
        self.hidden = nn.Sequential(
            *(nn.Linear(16 * CONTEXT, width, bias=False), nn.RMSNorm(width), nn.ReLU()),
            *(nn.Linear(width, width, bias=False), nn.RMSNorm(width), nn.ReLU()),
        )
        self.head = nn.Linear(width, 128, bias=False)

    def forward(self, tokens):
        return self.head(self.hidden(self.bytes(tokens).flatten(-2)))


def text():
    """The ASCII bytes of the standard library's modules, and those of each tenth one."""
    parts = [bytearray(), bytearray()]
    for index, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        parts[index % 10 == 9] += path.read_bytes()
    return [torch.tensor([byte for byte in part if byte < 128]) for part in parts]


def batch_of(data, count, generator):
    places = torch.randint(len(data) - CONTEXT, (count, 1), generator=generator)
    windows = data[places + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


def run(seed, steps, data, held_out, Hidden=None, width=256):
    """The loss after `steps` steps; `Hidden` steps the hidden matrices, AdamW all else."""
    torch.manual_seed(seed)
    model = Model(width)
    hidden = [p for p in model.hidden.parameters() if p.ndim == 2] if Hidden else []
    rest = [p for p in model.parameters() if not any(p is weight for weight in hidden)]
    optimizers = [torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)]
    if Hidden:
        optimizers.append(Hidden(hidden, lr=0.03))
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
        for optimizer in optimizers
    ]
    for _ in range(steps):
        inputs, targets = batch_of(data, BATCH, None)
        model.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for optimizer_or_schedule in (*optimizers, *schedules):
            optimizer_or_schedule.step()
    with torch.no_grad():
        inputs, targets = batch_of(held_out, 16384, torch.Generator().manual_seed(0))
        return cross_entropy(model(inputs), targets).item()


def main(options):
    torch.set_num_threads(1)
    steps, runs, width = (2, 2, 16) if options.tiny else (STEPS, RUNS, 256)
    data, held_out = text()
    if options.calibrate:
        losses = [run(100 + seed, BASELINE_STEPS, data, held_out) for seed in range(16)]
        losses = torch.tensor(losses, dtype=torch.float64)
        print(f"TARGET, SIGMA = {losses.mean():.4f}, {losses.std():.4f}")
        return
    folder = Path(tempfile.mkdtemp() if options.tiny else ".")
    BrakedMuon = exported(folder / "braked_muon.py")
    lines = (folder / "braked_muon.py").read_text().splitlines()
    print(f"{folder / 'braked_muon.py'}: {len(lines)} lines of plain torch")
    losses = [run(seed, steps, data, held_out, BrakedMuon, width) for seed in range(runs)]
    mean = sum(losses) / runs
    z = (TARGET - mean) * math.sqrt(runs) / SIGMA
    p = math.erfc(z / math.sqrt(2)) / 2
    print(
        f"{runs} runs of {steps} steps: mean {mean:.4f}, target {TARGET} (AdamW, {BASELINE_STEPS})"
    )
    print(f"z = {z:.2f}, p = {p:.1e}: {'the target is reached' if z >= 3.09 else 'not shown'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrate", action="store_true", help="measure the baseline")
    parser.add_argument("--tiny", action="store_true", help="a few steps, as in the tests")
    main(parser.parse_args())
