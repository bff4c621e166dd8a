"""Pictures of records as data URIs, for pages that their owner keeps private."""

import base64
import io

import numpy as np
from jaxtyping import Shaped

_SIDE = 64
"""Pixels of the longer side of a picture."""


def are_pictures(inputs: Shaped[np.ndarray, "n ..."] | None) -> bool:
    """Returns whether inputs have the shape [n, height, width, 1 or 3]."""
    return inputs is not None and inputs.ndim == 4 and inputs.shape[-1] in (1, 3)


def data_uri(image: Shaped[np.ndarray, "h w c"]) -> str:
    """Encodes an image as a PNG of at most 64 x 64 pixels.

    Args:
      image: values in [0, 1], or bytes; other ranges are stretched from minimum to maximum.

    Returns:
      A text that begins with "data:image/png;base64,".
    """
    from PIL import Image

    values = np.asarray(image, np.float64)
    low, high = values.min(), values.max()
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    pixels = np.round(255 * (values - low) / max(high - low, 1e-30)).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    picture.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
