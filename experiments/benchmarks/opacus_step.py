"""The peer in PyTorch: Opacus with hooks and with ghost clipping, against PyTorch's plain step.

Usage: python -m experiments.benchmarks.opacus_step MODEL BATCH REPEATS SECONDS
       python -m experiments.benchmarks.opacus_step --memory MODEL METHOD BATCH

Prints one JSON list of rows, or the growth of the process in MB.
"""

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn

from experiments import common

CLIP_NORM = 1.0


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(5000, 64), DPLSTM(64, 128, batch_first=True)
        self.out = nn.Linear(128, 2)

    def forward(self, ids):
        states, _ = self.lstm(self.embed(ids))
        return self.out(states[:, -1])


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(128), nn.LayerNorm(128)])
        self.attention = DPMultiheadAttention(128, 4, batch_first=True)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(5000, 128), nn.Embedding(64, 128)
        self.layers = nn.ModuleList([_Layer(), _Layer()])
        self.norm, self.out = nn.LayerNorm(128), nn.Linear(128, 2)

    def forward(self, ids):
        places = torch.arange(ids.shape[1]).repeat(ids.shape[0], 1)
        x = self.embed(ids) + self.places(places)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


def model_of(name: str) -> nn.Module:
    """The same shapes as in victims.py."""
    torch.manual_seed(0)
    if name == "mlp":
        sizes, layers = [600, 1024, 512, 256], []
        for i, o in itertools.pairwise(sizes):
            layers += [nn.Linear(i, o), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(256, 100))
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
    return _Recurrent() if name == "lstm" else _Encoder()


def batch_of(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and labels."""
    shapes = {"mlp": (600,), "cnn": (1, 28, 28)}
    classes = {"mlp": 100, "cnn": 10}.get(name, 2)
    x = torch.randn(size, *shapes[name]) if name in shapes else torch.randint(0, 5000, (size, 64))
    return x, torch.arange(size) % classes


def step_of(name: str, method: str, batch: int) -> Callable[[], Any]:
    """One gradient, or one clipped sum, of one batch."""
    x, y = batch_of(name, batch)
    model = model_of(name)
    loss = nn.CrossEntropyLoss(reduction="none")
    if method == "plain":

        def plain():
            model.zero_grad()
            loss(model(x), y).mean().backward()

        return plain
    if method == "hooks":
        hooked = GradSampleModule(model)

        def hooks():
            hooked.zero_grad()
            loss(hooked(x), y).sum().backward()
            samples = [p.grad_sample for p in hooked.parameters()]
            norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
            weights = (CLIP_NORM / norms.clamp(min=1e-12)).clamp(max=1.0)
            return [torch.einsum("b,b...->...", weights, s) for s in samples]

        return hooks
    ghosted = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )

    def ghost():
        ghosted.zero_grad()
        ghosted.enable_hooks()
        values = loss(ghosted(x), y)
        values.sum().backward(retain_graph=True)
        weights = ghosted.get_clipping_coef()
        ghosted.zero_grad()
        ghosted.disable_hooks()
        (values * weights).sum().backward()

    return ghost


def main(words: list[str]) -> None:
    """Prints what the usage says."""
    warnings.simplefilter("ignore")
    if words[0] == "--memory":
        name, method, batch = words[1:]
        step = step_of(name, method, int(batch))
        print(json.dumps(common.growth_mb(step)))
        return
    name, batch, repeats, seconds = words[0], int(words[1]), int(words[2]), float(words[3])
    steps = {m: step_of(name, m, batch) for m in ("plain", "hooks", "ghost")}
    times = common.interleaved(steps, repeats=repeats, seconds=seconds)
    rows = [
        {
            "model": name,
            "method": f"opacus-{m}",
            "ratio": common.ratio(times, m, "plain"),
            "seconds": float(np.median(times[m])),
            "difference": None,
        }
        for m in steps
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
