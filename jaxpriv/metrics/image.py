"""Metrics of model inversion: how near a reconstruction is to the training images of its class.

A small distance to a training image does not show that the image was memorised, since other
images of the class may be as near. `membership_check` compares with such images, and
`reidentification` measures whether a classifier recognises the person. In the shapes below `k`
counts reconstructions, `n` training images, `m` held-out images, `c` classes.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from jaxpriv import _check
from jaxpriv.metrics import intervals
from jaxpriv.metrics.intervals import Share

__all__ = [
    "Distance",
    "MembershipCheck",
    "Nearest",
    "Reidentification",
    "inversion_distance",
    "membership_check",
    "reidentification",
    "ssim",
]

Distance = Literal["euclidean", "one_minus_ssim"]
"""Distance of two images: Euclidean, or 1 - SSIM in [0, 2]."""

_WINDOW = 11
"""Width of the Gaussian window of SSIM, in pixels."""

_BLOCK_BYTES = 2**25
"""Size of one float64 intermediate result of all pairs of a block."""


def ssim(x: Shaped[ArrayLike, "h w c"], y: Shaped[ArrayLike, "h w c"]) -> Float[Array, ""]:
    """Computes the structural similarity index of two images, in [-1, 1].

    SSIM is the mean over pixels of
    (2 mx my + c1) (2 sxy + c2) / ((mx^2 + my^2 + c1) (sx^2 + sy^2 + c2)),
    with means, variances and covariance in a Gaussian window of 11 x 11 pixels and standard
    deviation 1.5, c1 = 0.01^2 and c2 = 0.03^2; channels are averaged.

    Args:
      x: image with values in [0, 1], at least 11 pixels high and wide.
      y: image of the same shape.

    Returns:
      The index; 1 for equal images.

    Raises:
      ValueError: if the images are smaller than the window, have unequal shapes, or values outside
        [0, 1]; traced values are not checked.

    References:
      Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, 2004,
      equation 13.

    Example:
      >>> image = np.tile(np.linspace(0, 1, 28), (28, 1))[:, :, None]
      >>> print(f"{ssim(image, image):.3f} {ssim(image, 1 - image):.3f}")
      1.000 -0.569
    """
    import dm_pix

    a, b = jnp.asarray(x, float), jnp.asarray(y, float)
    if a.ndim != 3 or min(a.shape[:2]) < _WINDOW:
        raise ValueError(
            f"Expected images [h, w, c] of at least {_WINDOW} x {_WINDOW} pixels, "
            f"got shape {list(a.shape)}."
        )
    if a.shape != b.shape:
        raise ValueError(f"Expected images of equal shapes, got {list(a.shape)}, {list(b.shape)}.")
    for image in (a, b):
        if not isinstance(image, core.Tracer) and not 0 <= image.min() <= image.max() <= 1:
            raise ValueError(
                "Expected images with pixels in [0, 1], "
                f"got {float(image.min()):g} to {float(image.max()):g}."
            )
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(dm_pix.ssim(a, b, max_val=1.0, filter_size=_WINDOW))


class Nearest(NamedTuple):
    """The training image of its class that is nearest to each reconstruction.

    distance: distance to it.
    image: its index in the training images.
    """

    distance: Float[np.ndarray, " k"]
    image: Int[np.ndarray, " k"]


def inversion_distance(
    images: Shaped[Array | np.ndarray, "k h w c"],
    labels: Shaped[Array | np.ndarray, "k ..."],
    *,
    training: Shaped[Array | np.ndarray, "n h w c"],
    training_labels: Shaped[Array | np.ndarray, "n ..."],
    distance: Distance,
    block_size: int | None = None,
) -> Nearest:
    """Finds the distance of each reconstruction to the nearest training image of its class.

    The distances are those of float64 and computed in blocks of training images.

    Args:
      images: reconstructions, with values in [0, 1] for SSIM.
      labels: class that each was reconstructed for.
      training: training images.
      training_labels: their classes.
      distance: "euclidean", or "one_minus_ssim" for images of at least 11 x 11 pixels.
      block_size: number of training images in a block; None chooses it by the memory it takes.

    Returns:
      The MIA distance of Zhang et al., smaller = nearer to a training image, and the image.

    Raises:
      ValueError: for images that are not finite, of unequal shapes or (for SSIM) outside [0, 1],
        for unequal lengths, or for a class without training images.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, section III, Tables I and II.

    Example:
      >>> training = np.stack([np.full((2, 2, 1), v) for v in (0.0, 0.25, 1.0)])
      >>> nearest = inversion_distance(
      ...     np.full((1, 2, 2, 1), 0.5), np.array([7]), training=training,
      ...     training_labels=np.array([7, 3, 7]), distance="euclidean",
      ... )
      >>> nearest.distance, nearest.image
      (array([1.]), array([0]))
    """
    if block_size is not None:
        _check.positive_int(block_size=block_size)
    return _nearest(
        images, labels, "training", training, training_labels, distance, block_size=block_size
    )


def _nearest(
    images: Shaped[Array | np.ndarray, "k h w c"],
    labels: Shaped[Array | np.ndarray, "k ..."],
    name: str,
    candidates: Shaped[Array | np.ndarray, "n h w c"],
    candidate_labels: Shaped[Array | np.ndarray, "n ..."],
    distance: Distance,
    *,
    block_size: int | None = None,
) -> Nearest:
    """Finds the nearest of the candidates, which errors call by their name."""
    _check.one_of(("euclidean", "one_minus_ssim"), distance=distance)
    x, classes = _images("images", images, labels, distance)
    y, candidate_classes = _images(name, candidates, candidate_labels, distance)
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"Expected {name} of shape {list(x.shape[1:])}, got shape {list(y.shape[1:])}."
        )
    pairwise = _euclidean if distance == "euclidean" else _one_minus_ssim
    size = block_size or max(1, _BLOCK_BYTES // (8 * max(1, x[0].size)))
    lowest, index = np.full(len(x), np.inf), np.zeros(len(x), int)
    for label in np.unique(classes):
        rows, matching = (np.flatnonzero(c == label) for c in (classes, candidate_classes))
        if not len(matching):
            raise ValueError(f"Expected {name} images of class {label}, got none.")
        for start in range(0, len(matching), size):
            block = matching[start : start + size]
            for row in rows:
                values = pairwise(x[row], y[block], size=min(size, len(y)))
                best = int(values.argmin())
                if values[best] < lowest[row]:
                    lowest[row], index[row] = values[best], block[best]
    return Nearest(lowest, index)


class MembershipCheck(NamedTuple):
    """Comparison of the nearest training image with the nearest held-out image of the class.

    training_distance: distance of each reconstruction to the nearest training image.
    held_out_distance: distance to the nearest held-out image.
    closer: whether the training image is nearer; false for equal distances.
    share: share of reconstructions for which it is.
    expected: the share to expect if the reconstructions do not depend on which images were used
      for training: the mean of n / (n + m) over the reconstructions' classes.
    """

    training_distance: Float[np.ndarray, " k"]
    held_out_distance: Float[np.ndarray, " k"]
    closer: Bool[np.ndarray, " k"]
    share: Share
    expected: float


def membership_check(
    images: Shaped[Array | np.ndarray, "k h w c"],
    labels: Shaped[Array | np.ndarray, "k ..."],
    *,
    training: Shaped[Array | np.ndarray, "n h w c"],
    training_labels: Shaped[Array | np.ndarray, "n ..."],
    held_out: Shaped[Array | np.ndarray, "m h w c"],
    held_out_labels: Shaped[Array | np.ndarray, "m ..."],
    distance: Distance,
    confidence: float,
) -> MembershipCheck:
    """Measures how many reconstructions are nearer to training images than to held-out ones.

    Reconstructions that show the class and no training image have a share near `expected`; an
    interval above it shows that training images were memorised. Augmented copies of one image
    must be on one side.

    Args:
      images: reconstructions, independent of each other, such as one for each class.
      labels: class that each was reconstructed for.
      training: training images.
      training_labels: their classes.
      held_out: images of the same distribution that were not used for training.
      held_out_labels: their classes.
      distance: see `inversion_distance`.
      confidence: confidence level of the interval, in (0, 1).

    Returns:
      The distances, the share with its interval, and the share to expect.

    Raises:
      ValueError: for the errors of `inversion_distance`, on either side, or if confidence is not
        in (0, 1).

    Example:
      >>> rng = np.random.default_rng(0)
      >>> faces, people = rng.random((40, 4, 4, 1)), np.arange(40) % 20
      >>> check = membership_check(
      ...     faces[:20] + 0.01, people[:20],
      ...     training=faces[:20], training_labels=people[:20],
      ...     held_out=faces[20:], held_out_labels=people[20:],
      ...     distance="euclidean", confidence=0.95,
      ... )
      >>> check.share.value, round(check.share.lower, 2), check.expected
      (1.0, 0.83, 0.5)
    """
    near, far = (
        _nearest(images, labels, name, side, side_labels, distance).distance
        for name, side, side_labels in (
            ("training", training, training_labels),
            ("held_out", held_out, held_out_labels),
        )
    )
    classes, *sides = (
        _check.labels(values, num_classes=None)
        for values in (labels, training_labels, held_out_labels)
    )
    num_training, num_held_out = ((side[None] == classes[:, None]).sum(axis=1) for side in sides)
    closer = near < far
    return MembershipCheck(
        training_distance=near,
        held_out_distance=far,
        closer=closer,
        share=intervals.share(closer, confidence=confidence),
        expected=float((num_training / (num_training + num_held_out)).mean()),
    )


class Reidentification(NamedTuple):
    """Share of the reconstructions whose class a classifier names.

    top_1: share whose label has the largest logit.
    top_5: share whose label is among the five largest logits; None for at most five classes.
    num_classes: number of classes c; guessing has the shares 1/c and 5/c.
    """

    top_1: Share
    top_5: Share | None
    num_classes: int


def reidentification(
    logits: Shaped[Array | np.ndarray, "k c"],
    labels: Shaped[Array | np.ndarray, "k ..."],
    *,
    confidence: float,
    cluster: Shaped[np.ndarray, " k"] | None = None,
) -> Reidentification:
    """Measures how many reconstructions a classifier assigns to the right class.

    The classifier must be trained on images that the attacked model was not trained on. Otherwise
    an image that only this model takes for the person may count as recognised.

    Args:
      logits: outputs of the classifier for the reconstructions.
      labels: class that each was reconstructed for.
      confidence: confidence level of each interval, in (0, 1).
      cluster: cluster of each reconstruction, such as its class, within which reconstructions are
        dependent; None: all are independent, such as one for each class.

    Returns:
      The shares. A class with the logit of the label counts as above it, so that a classifier
      with equal logits names nobody.

    Raises:
      ValueError: for NaN, labels that do not index the logits, unequal lengths, no
        reconstructions, or if confidence is not in (0, 1).

    Example:
      >>> result = reidentification(np.eye(8)[[0, 1, 2, 0]], np.arange(4), confidence=0.95)
      >>> result.top_1.value, round(result.top_1.lower, 2), round(result.top_1.upper, 2)
      (0.75, 0.19, 0.99)
    """
    array = _check.real_array("logits", logits)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"Expected logits [k, c], got shape {list(array.shape)}.")
    num_classes = array.shape[1]
    classes = _check.labels(labels, num_classes=num_classes)
    _check.same_length(logits=array, labels=classes)
    of_label = np.take_along_axis(array, classes[:, None].astype(int), axis=1)
    num_above = (array >= of_label).sum(axis=1) - 1  # without the label itself

    def share(ranks: int) -> Share:
        return intervals.share(num_above < ranks, confidence=confidence, cluster=cluster)

    return Reidentification(
        top_1=share(1), top_5=share(5) if num_classes > 5 else None, num_classes=num_classes
    )


def _images(
    name: str,
    images: Shaped[Array | np.ndarray, "..."],
    labels: Shaped[Array | np.ndarray, "..."],
    distance: Distance,
) -> tuple[Float[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    """Checks images and their labels, and converts the images to float64."""
    x = _check.real_array(name, images)
    if x.ndim != 4 or not x.size:
        raise ValueError(f"Expected {name} of shape [n, h, w, c], got {list(x.shape)}.")
    if not np.isfinite(x).all():
        raise ValueError(f"Expected finite {name}, got infinity.")
    if distance == "one_minus_ssim" and not 0 <= x.min() <= x.max() <= 1:
        raise ValueError(
            f"Expected {name} with pixels in [0, 1], got {float(x.min()):g} to {float(x.max()):g}."
        )
    classes = _check.labels(labels, num_classes=None, name=f"labels of {name}")
    _check.same_length(**{name: x, "labels": classes})
    return x.astype(np.float64), classes


def _euclidean(
    image: Float[np.ndarray, "h w c"], block: Float[np.ndarray, "b h w c"], *, size: int
) -> Float[np.ndarray, " b"]:
    del size
    return np.sqrt(np.square(block - image).sum(axis=(1, 2, 3)))


def _one_minus_ssim(
    image: Float[np.ndarray, "h w c"], block: Float[np.ndarray, "b h w c"], *, size: int
) -> Float[np.ndarray, " b"]:
    """Evaluates a block, filled up with repeated images, as every shape is compiled anew."""
    filled = block[np.resize(np.arange(len(block)), size)]
    # Variances cancel, and c2 = 0.0009 divides their rounding error of 1e-7 in float32.
    with jax.enable_x64(True):
        values = np.asarray(_block_ssim(image, filled))
    return 1 - values[: len(block)]


_block_ssim = jax.jit(jax.vmap(ssim, in_axes=(None, 0)))
