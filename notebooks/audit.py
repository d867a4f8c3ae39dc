# %% [markdown]
# # Audit a ResNet and a GPT
#
# Which weights of a network have a norm that does not matter? One call answers before training.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

import spherenorm as sn

torch.manual_seed(0)
# %config InlineBackend.figure_formats = ["svg"]

# %% [markdown]
# ## A small ResNet
#
# Each convolution stands before BatchNorm, which divides by the scale of its inputs.


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return relu(x + self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))))


resnet = nn.Sequential(
    *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
    *(Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
)
images = torch.randn(64, 1, 8, 8)
audit = sn.audit(resnet, images)
print(audit)

# %% [markdown]
# The three convolutions are invariant, filter by filter: AdamP and SGDP change how they train. The
# head is not.
#
# ## A small GPT
#
# The queries and keys are normalized in each head; nothing else is followed by a normalization
# alone.


# %%
class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in self.qkv)
        y = scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(relu(self.up(self.norm2(x))))


gpt = nn.Sequential(nn.Embedding(64, 16), Layer(16, 2), nn.LayerNorm(16), nn.Linear(16, 64))
tokens = torch.randint(64, (8, 12))
audit = sn.audit(gpt, tokens)
print(audit)

# %% [markdown]
# Queries and keys are invariant in their heads (`groups=2`). The rest needs norm control of
# another kind: Muon or Hyperball for the matrices. `param_groups` makes the groups from the same
# measurement.

# %%
groups = sn.param_groups(gpt, tokens, "muon+adamw")
print(groups)
optimizer = groups.optimizer()

# %% [markdown]
# ## What it changes
#
# The same ResNet under AdamW and under AdamP, on labels that are random. A probe gives the norm of
# the first convolution and its turn per step.

# %%
labels = torch.randint(10, (64,))
start = {name: value.clone() for name, value in resnet.state_dict().items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
for name, make in (("AdamW", torch.optim.AdamW), ("AdamP", sn.optim.AdamP)):
    resnet.load_state_dict(start)
    optimizer = make(resnet.parameters(), lr=1e-2, weight_decay=1e-2)
    with sn.probe(optimizer, every=5, model=resnet) as probe:
        for _ in range(100):
            optimizer.zero_grad()
            cross_entropy(resnet(images), labels).backward()
            optimizer.step()
    rows = [m for m in probe.measurements if m.weight == "0.weight"]
    steps = [m.step for m in rows]
    left.plot(steps, [m.norm for m in rows], label=name)
    right.semilogy(steps, [m.turn for m in rows], label=name)
    print(f"{name}: norm {rows[0].norm:.3f} -> {rows[-1].norm:.3f}")
left.set(title="norm of the first convolution", xlabel="step")
right.set(title="its turn per step (radians)", xlabel="step")
_ = left.legend()
