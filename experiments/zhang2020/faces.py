"""Faces, and the softmax regression that zhang2020 attacks on them.

Faces94 is used where `JAXPRIV_DATA` has it, otherwise the faces of ORL, rescaled to its size.
Three fifths of the images of a person are for training, a fifth is for testing and a fifth trains
the referee, which names reconstructions. Each training image gets ten copies, as in the paper, and
so do those of the referee. Copies stay with their image; the paper does not state that its do.
"""

import dataclasses
from dataclasses import dataclass

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float

from experiments.zhang2020.victims import Images, Recipe
from jaxpriv import data

HEIGHT, WIDTH = 70, 60
_SHARES = {"training": 0.6, "test": 0.2, "referee": 0.2}
_COPIES, _MAX_SHIFT, _MAX_BRIGHTNESS = 10, 3, 0.2


@dataclass(frozen=True, kw_only=True)
class Selection:
    """people: number of people, at most; None: all. copies: copies of each training image.

    generated: random images in place of faces, for tests.
    """

    people: int | None = None
    copies: int = _COPIES
    generated: bool = False


class Softmax(nn.Module):
    """Softmax regression on the pixels of an image."""

    num_classes: int

    @nn.compact
    def __call__(self, x: Float[Array, "*b h w c"]) -> Float[Array, "*b k"]:
        return nn.Dense(self.num_classes)(x.reshape(*x.shape[:-3], -1))


def recipe(**changes: float) -> Recipe:
    """Returns the training of the paper, whose number of steps is not stated.

    The batch size is that of a third of the classes, on the faces of ORL.
    """
    options = {
        "batch_size": 0.33 * 2640,
        "steps": 167,
        "clip_norm": 10.0,
        "record_clip_norm": 1.0,
        "learning_rate": 0.002,
        "delta": 1e-2,
    }
    return Recipe(**(options | changes))  # pyright: ignore[reportArgumentType]


def load(selection: Selection) -> Images:
    """Reads, rescales, splits and augments the faces."""
    dataset = _generated() if selection.generated else _faces()
    if selection.people is not None:
        dataset = dataset.take_classes(range(min(selection.people, dataset.num_classes)))
    part = _parts(np.random.default_rng(0), dataset.y)
    num_originals = int((part == 0).sum())
    training, test, referee = (dataset.subset(part == i) for i in range(len(_SHARES)))
    rng = np.random.default_rng(1)
    training, referee = (
        data.images.augment(
            rng,
            each,
            copies=selection.copies,
            max_shift=_MAX_SHIFT,
            max_brightness=_MAX_BRIGHTNESS,
        )
        for each in (training, referee)
    )
    return Images(
        data_name=dataset.name,
        module=Softmax(num_classes=dataset.num_classes),
        num_classes=dataset.num_classes,
        x=training.x,
        y=training.y.astype(np.int32),
        test_x=test.x,
        test_y=test.y,
        referee_x=referee.x,
        referee_y=referee.y.astype(np.int32),
        num_originals=num_originals,
    )


def _faces() -> data.Dataset:
    names = {entry.name for entry in data.available() if entry.sources}
    faces = data.load("faces94" if "faces94" in names else "orl")
    size = (len(faces), HEIGHT, WIDTH, faces.x.shape[-1])
    if faces.x.shape == size:
        return faces
    return dataclasses.replace(
        faces, x=np.clip(np.asarray(jax.image.resize(faces.x, size, "linear")), 0, 1)
    )


def _generated() -> data.Dataset:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 5)
    x = rng.random((8, 14, 12, 1))[y] * 0.8 + 0.2 * rng.random((40, 14, 12, 1))
    return data.Dataset(
        x=x.astype(np.float32), y=y, name="generated", num_classes=8, source="generated"
    )


def _parts(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    """Draws the part of each image, in equal shares of each person."""
    part = np.zeros(len(y), int)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = np.round(np.cumsum(list(_SHARES.values())) * len(rows)).astype(int)
        part[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return part


def originals(images: Images) -> np.ndarray:
    """Returns the first training image of each person, [c, h, w, 1]."""
    return np.stack([images.x[np.argmax(images.y == c)] for c in range(images.num_classes)])
