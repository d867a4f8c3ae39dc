"""AdamP on a model sharded by FSDP2, in two processes: the same weights as in one, to rounding.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py       # gloo, on a CPU: seconds

`fully_shard` cuts each weight along its first dimension. The optimizer is made afterwards, and is
the one for a single process: a step is that of the whole weight. A checkpoint of
torch.distributed.checkpoint holds the shards, and loads into any number of processes. All is in
float64: in float32 the order of a sum already turns steps of Adam's kind after some steps.

Five layers of width 256, 50 steps (on a loaded machine: gloo on one machine shows no speed):

    one process:   44.1 ms a step
    2 processes:   269.3 ms a step, 104709 of
                   209418 parameters in each
    weights differ by at most 1.4e-13
    the run that was loaded goes on with the same bits
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import spherenorm as sn


def network(width, depth):
    """Layers before LayerNorm, whose norms do not matter, and a head."""
    layers = [nn.Linear(32, width, bias=False), nn.LayerNorm(width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).double()


def sharded(model, mesh):
    """A copy of the model with its layers sharded one by one, as FSDP2 wants it."""
    model = copy.deepcopy(model)
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, optimizer, steps):
    """Each process takes its part of each batch; FSDP2 averages the gradients."""
    rank, count = dist.get_rank(), dist.get_world_size()
    whole = not any(hasattr(weight, "full_tensor") for weight in model.parameters())
    generator = torch.Generator().manual_seed(1)
    before = time.perf_counter()
    for _ in range(steps):
        inputs = torch.randn(64, 32, generator=generator, dtype=torch.float64)
        labels = inputs[:, :10].argmax(1)
        part = slice(None) if whole else slice(rank, None, count)
        optimizer.zero_grad()
        cross_entropy(model(inputs[part]), labels[part]).backward()
        optimizer.step()
    return (time.perf_counter() - before) / steps


def largest_difference(model, other):
    """Of two models' weights; `full_tensor` gathers the shards."""
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    pairs = zip(whole, other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def main(tiny=False):
    dist.init_process_group("gloo")
    width, depth, steps = (16, 2, 3) if tiny else (256, 4, 50)
    say = print if dist.get_rank() == 0 else (lambda *_: None)
    torch.manual_seed(0)  # all processes begin with the same weights
    start = network(width, depth)
    settings = {"lr": 1e-3, "weight_decay": 1e-2}

    alone = copy.deepcopy(start)
    optimizer = sn.optim.AdamP(alone.parameters(), **settings)
    seconds = train(alone, optimizer, steps)
    say(f"one process:   {1e3 * seconds:.1f} ms a step")

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = sharded(start, mesh)
    optimizer = sn.optim.AdamP(model.parameters(), **settings)  # after fully_shard
    seconds = train(model, optimizer, steps)
    numbers = sum(p.to_local().numel() for p in model.parameters())
    say(f"{dist.get_world_size()} processes:   {1e3 * seconds:.1f} ms a step, {numbers} of")
    say(f"               {sum(p.numel() for p in alone.parameters())} parameters in each")
    difference = largest_difference(model, alone)
    say(f"weights differ by at most {difference:.1e}")
    assert difference < 1e-10
    if not tiny:
        say(sn.explain(optimizer))

    # A checkpoint of the shards, loaded into new objects.
    path = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path)
    weights, states = get_state_dict(model, optimizer)
    folder = Path(path[0], "checkpoint")
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    resumed = sharded(start, mesh)
    again = sn.optim.AdamP(resumed.parameters(), **settings)
    loaded = dict(zip(("model", "optimizer"), get_state_dict(resumed, again), strict=True))
    checkpoint.load(loaded, checkpoint_id=folder)
    set_state_dict(
        resumed, again, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    train(model, optimizer, 3)
    train(resumed, again, 3)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local())
    say("the run that was loaded goes on with the same bits")
    dist.barrier()  # one that leaves first may abort the other's last exchange
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a few steps, as in the tests")
    main(parser.parse_args().tiny)
