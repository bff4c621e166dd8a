"""The peers of benchmarks/inversion: the enhanced attack as a loop in PyTorch, and ART's MIFace.

Usage: python -m experiments.benchmarks.inversion_torch WEIGHTS.npz CLASSES STEPS REPEATS

Prints one JSON object: method -> (seconds of each call, final losses).
"""

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from experiments.benchmarks import inversion


class Net(nn.Module):
    """`jaxpriv.models.CNN` with its weights and a softmax, on images [b, 1, 28, 28]."""

    def __init__(self, weights: dict[str, np.ndarray]):
        super().__init__()
        first, second = weights["Conv_0/kernel"].shape[3], weights["Conv_1/kernel"].shape[3]
        self.convs = nn.ModuleList(
            [nn.Conv2d(1, first, 3, padding=1), nn.Conv2d(first, second, 3, padding=1)]
        )
        self.dense = nn.ModuleList(
            [nn.Linear(*weights[f"Dense_{i}/kernel"].shape) for i in range(2)]
        )
        with torch.no_grad():
            for i in range(2):
                kernel = weights[f"Conv_{i}/kernel"].transpose(3, 2, 0, 1)
                self.convs[i].weight.copy_(torch.from_numpy(kernel.copy()))
                self.convs[i].bias.copy_(torch.from_numpy(weights[f"Conv_{i}/bias"]))
                self.dense[i].weight.copy_(torch.from_numpy(weights[f"Dense_{i}/kernel"].T.copy()))
                self.dense[i].bias.copy_(torch.from_numpy(weights[f"Dense_{i}/bias"]))
        self.requires_grad_(False)

    def forward(self, x):
        for conv in self.convs:
            x = nn.functional.max_pool2d(conv(x).relu(), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)  # Flax flattens the channels last
        logits = self.dense[1](self.dense[0](x).relu())
        return logits.softmax(dim=1)


def enhanced(net: nn.Module, classes: int, steps: int) -> Callable[[], np.ndarray]:
    """Algorithm 1 of Zhang et al. for all labels in one batch; returns the final losses."""
    labels = torch.arange(classes)

    def losses(w):
        x = (w.tanh() + 1) / 2
        confidence = net(x)[labels, labels]
        return 1 - confidence + inversion.PENALTY_WEIGHT * x.abs().sum(dim=(1, 2, 3))

    def attack():
        w = torch.zeros(classes, 1, 28, 28)
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for _ in range(steps):
            w.requires_grad_(True)
            (g,) = torch.autograd.grad(losses(w).sum(), w)
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g**2
            w = (w - inversion.LEARNING_RATE * m / (v + 1e-8).sqrt()).detach()
        with torch.no_grad():
            return losses(w).numpy()

    return attack


def mi_face(net: nn.Module, classes: int, steps: int, *, batch: int) -> Callable[[], np.ndarray]:
    """ART's gradient descent, for `batch` labels at a time; returns the final losses."""
    from art.attacks.inference.model_inversion import MIFace
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        net, nn.CrossEntropyLoss(), (1, 28, 28), classes, clip_values=(0.0, 1.0), device_type="cpu"
    )
    options = {"max_iter": steps, "learning_rate": inversion.LEARNING_RATE, "batch_size": batch}
    # A label goes on while its loss is below the threshold.
    attack = MIFace(classifier, threshold=2.0, verbose=False, **options)
    labels = np.arange(classes)

    def run():
        x = attack.infer(None, labels)
        return 1 - classifier.predict(x)[labels, labels]

    return run


def main(words: list[str]) -> None:
    """Prints what the usage says."""
    warnings.simplefilter("ignore")
    path, classes, steps, repeats = words[0], *map(int, words[1:])
    with np.load(path, allow_pickle=False) as arrays:
        weights = {name: arrays[name] for name in arrays.files}
    net = Net(weights)
    methods = {"torch enhanced": enhanced(net, classes, steps)}
    if importlib.util.find_spec("art"):
        methods["ART gradient descent"] = mi_face(net, classes, steps, batch=1)
        methods["ART gradient descent, one batch"] = mi_face(net, classes, steps, batch=classes)
    result = {}
    for name, attack in methods.items():
        times, losses = inversion.timed(attack, repeats=repeats)
        result[name] = (times, np.asarray(losses, float).tolist())
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
