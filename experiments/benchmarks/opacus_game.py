"""The peer of `di_audit` in PyTorch: repetitions of the game in a loop over Opacus's gradients.

Usage: python -m experiments.benchmarks.opacus_game TASK RECORDS STEPS REPEATS

Each step takes per-example gradients by Opacus's hooks, clips them, adds noise and the record that
differs, updates the belief and calls Adam. Prints the seconds of one repetition, for each of
REPEATS, as a JSON list.
"""

import json
import sys
import time
import warnings

import torch
from opacus import GradSampleModule
from torch import nn

CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 3.0, 10.0, 0.005
_CLASSES = {"mnist": 10, "purchases": 100, "adult": 2}


def model_of(task: str) -> nn.Module:
    """Makes the networks of `experiments.bernau2021.games`, with GroupNorm for MNIST."""
    if task == "mnist":
        return nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(),
            nn.Conv2d(8, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 10),
        )  # fmt: skip
    if task == "purchases":
        return nn.Sequential(nn.Linear(600, 128), nn.ReLU(), nn.Linear(128, 100))
    return nn.Sequential(nn.Linear(104, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


def records_of(task: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws random records of the shapes of the task."""
    shape = {"mnist": (1, 28, 28), "purchases": (600,), "adult": (104,)}[task]
    return torch.rand(count, *shape), torch.arange(count) % _CLASSES[task]


def clipped(model: GradSampleModule, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Computes the clipped per-example gradients, [records, ...] for each parameter."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    samples = [p.grad_sample for p in model.parameters()]
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
    weights = (CLIP_NORM / norms.clamp(min=1e-12)).clamp(max=1.0)
    return [s * weights.reshape(-1, *[1] * (s.dim() - 1)) for s in samples]


def play(task: str, x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Plays one repetition; the last two records are those that differ. Returns the log-odds."""
    model = GradSampleModule(model_of(task))
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    in_d, std = bool(torch.rand(()) < 0.5), NOISE_MULTIPLIER * CLIP_NORM
    log_odds = 0.0
    for _ in range(steps):
        samples = clipped(model, x, y)
        firsts, seconds = [s[-2] for s in samples], [s[-1] for s in samples]
        for parameter, s, first, second in zip(
            model.parameters(), samples, firsts, seconds, strict=True
        ):
            used = first if in_d else second
            released = used + std * torch.randn_like(used)
            middle = released - (first + second) / 2
            log_odds += float((middle * (first - second)).sum()) / std**2
            parameter.grad = (s[:-2].sum(0) + released) / (len(x) - 1)
        optimizer.step()
    return log_odds


def main(words: list[str]) -> None:
    """Prints what the usage says."""
    warnings.simplefilter("ignore")
    task, records, steps, repeats = words[0], int(words[1]), int(words[2]), int(words[3])
    x, y = records_of(task, records + 1)
    play(task, x, y, steps)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        play(task, x, y, steps)
        times.append(time.perf_counter() - started)
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1:])
