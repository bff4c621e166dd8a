"""Images in their published raw layouts: idx, CIFAR's binary version, folders of faces.

In shapes `n` counts images of `h` rows, `w` columns and `c` channels.
"""

import io
import math
import os
import re
import struct
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from jaxpriv import _files
from jaxpriv.data.base import Dataset

SUFFIXES = (".pgm", ".png", ".jpg", ".jpeg", ".bmp", ".gif")
_LARGEST_IDX = _files.GIB // 4  # bytes of pixels; four times as many as float32
_LARGEST_IMAGE = 2**24  # pixels
_PGM = re.compile(rb"(P[25])" + rb"(?:\s|#[^\n]*\n)+(\d{1,9})" * 3 + rb"\s")
_IDX_BYTES = 0x08  # type code of unsigned bytes


def read_idx(folder: Path, *, name: str, num_classes: int = 10) -> Dataset:
    """Reads MNIST's layout: `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, plain or `.gz`.

    Args:
      folder: that holds the four files.
      name: of the set.
      num_classes: number of labels.

    Returns:
      Training and test images in [0, 1].

    Raises:
      ValueError: if a file is missing, damaged or promises more than it holds.

    References:
      LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998.
    """
    x, y, sizes = [], [], []
    for part in ("train", "t10k"):
        images = _idx(folder, f"{part}-images-idx3-ubyte", rank=3)
        labels = _idx(folder, f"{part}-labels-idx1-ubyte", rank=1)
        if len(images) != len(labels):
            raise ValueError(
                f"Expected as many labels as images in {folder}, "
                f"got {len(labels)} and {len(images)} in {part}."
            )
        x.append(images)
        y.append(labels)
        sizes.append(len(labels))
    if x[0].shape[1:] != x[1].shape[1:]:
        raise ValueError(f"Expected images of one size, got {x[0].shape[1:]} and {x[1].shape[1:]}.")
    return Dataset(
        x=scaled(np.concatenate(x)[..., None]),
        y=np.concatenate(y).astype(np.int32),
        name=name,
        num_classes=num_classes,
        source=f"idx files in {folder}",
        is_test=np.repeat([False, True], sizes),
    )


def _idx(folder: Path, name: str, *, rank: int) -> UInt8[np.ndarray, "..."]:
    """Reads one idx file after holding its header against what follows it."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), folder / name)
    raw, start = _files.whole(path), 4 + 4 * rank
    zipped = path.suffix == ".gz"
    head = _files.gunzip(raw, at_most=start, name=path.name)[:start] if zipped else raw[:start]
    if len(head) < start:
        raise ValueError(f"Expected a header of {start} bytes in {path}, got {len(head)}.")
    magic, *shape = struct.unpack(f">{1 + rank}I", head)
    if magic != (_IDX_BYTES << 8) + rank:
        raise ValueError(
            f"Expected the magic number {(_IDX_BYTES << 8) + rank} in {path}, got {magic}."
        )
    size = math.prod(shape)
    if not 0 < size <= _LARGEST_IDX:
        raise ValueError(
            f"Expected 1 to {_LARGEST_IDX} bytes after the header of {path}, it says {size}."
        )
    body = _files.gunzip(raw, at_most=start + size, name=path.name) if zipped else raw
    if len(body) != start + size:
        told = "more" if len(body) > start + size else f"{len(body) - start}"
        raise ValueError(f"Expected {size} bytes after the header of {path}, got {told}.")
    return np.frombuffer(body, np.uint8, offset=start).reshape(shape)


def read_cifar(folder: Path, *, num_classes: int) -> Dataset:
    """Reads the binary version of CIFAR-10 or CIFAR-100; the pickled one is never opened.

    A record is its label (for CIFAR-100 a coarse one, which is dropped, and a fine one) and 3072
    bytes, channel by channel. The files stand in the folder, or in the published archive there.

    Args:
      folder: with `data_batch_{1..5}.bin` and `test_batch.bin`, or `train.bin` and `test.bin`.
      num_classes: 10 or 100.

    Returns:
      Training and test images in [0, 1].

    Raises:
      ValueError: if a file is missing, no whole number of records, or has labels out of range.

    References:
      Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if num_classes == 10 else ["train.bin"]
    test = "test_batch.bin" if num_classes == 10 else "test.bin"
    inside = "cifar-10-batches-bin" if num_classes == 10 else "cifar-100-binary"
    archive = f"cifar-{num_classes}-binary.tar.gz"
    held = _files.members(folder, [*train, test], inside=inside, archive=archive)
    first = 1 if num_classes == 10 else 2
    rows = []
    for name, raw in held.items():
        if len(raw) == 0 or len(raw) % (first + 3072) or len(raw) > _LARGEST_IDX:
            raise ValueError(
                f"Expected records of {first + 3072} bytes in {folder / name}, "
                f"got {len(raw)} bytes."
            )
        rows.append(np.frombuffer(raw, np.uint8).reshape(-1, first + 3072))
    sizes = [len(r) for r in rows]
    table = np.concatenate(rows)
    return Dataset(
        x=scaled(table[:, first:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
        y=table[:, first - 1].astype(np.int32),
        name=f"cifar{num_classes}",
        num_classes=num_classes,
        source=f"binary version in {folder}",
        is_test=np.repeat([name == test for name in held], sizes),
    )


def read_folder(
    folder: Path,
    *,
    name: str,
    suffixes: tuple[str, ...] = SUFFIXES,
    depth: int = 1,
    shrink_to: tuple[int, int] | None = None,
) -> Dataset:
    """Reads a folder of images by class: `folder/CLASS/IMAGE`.

    All images have one size and are all grey or all coloured. Folders without images are passed
    over; links that leave `folder` are refused. PGM is read here, other formats by Pillow.

    Args:
      folder: that holds a folder for each class.
      name: of the set.
      suffixes: of images; other files are passed over.
      depth: how many folders lie between `folder` and an image; the innermost is the class.
      shrink_to: (h, w) to which images are made grey and rescaled, if they are to be.

    Returns:
      Images in [0, 1]; classes in the natural order of their folders' names (s2 before s10).

    Raises:
      ValueError: if there are none, or one is damaged, of another size, or outside the folder.
    """
    found = _find(folder, suffixes, depth)
    names = sorted({p.parent.name for p in found}, key=_natural)
    number = {c: i for i, c in enumerate(names)}
    found.sort(key=lambda p: (number[p.parent.name], _natural(p.name)))
    pictures: list[np.ndarray] = []
    for path in found:
        picture = read_image(path, shrink_to=shrink_to)
        if pictures and picture.shape != pictures[0].shape:
            raise ValueError(
                f"Expected images of one shape in {folder}, got {pictures[0].shape} "
                f"and, in {path.name} of {path.parent.name}, {picture.shape}."
            )
        if len(found) * picture.size > _files.LARGEST_BYTES // 4:
            raise ValueError(f"Expected at most 8 GiB of pixels in {folder}, got more.")
        pictures.append(picture)
    told = "" if shrink_to is None else f", grey, {shrink_to[0]} x {shrink_to[1]}"
    return Dataset(
        x=np.stack(pictures),
        y=np.array([number[p.parent.name] for p in found], np.int32),
        name=name,
        num_classes=len(names),
        class_names=tuple(names),
        source=f"images in {folder}{told}",
    )


def _find(folder: Path, suffixes: tuple[str, ...], depth: int) -> list[Path]:
    """Images below a folder, all of them truly inside it."""
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of images by class at {folder}, found none.")
    found = [p for p in folder.glob("*/" * depth + "*") if p.suffix.lower() in suffixes]
    if not found:
        raise ValueError(
            f"Expected images ({', '.join(suffixes)}) in {folder}/{'*/' * depth}, found none."
        )
    home = os.path.realpath(folder)
    for path in found:
        if not Path(os.path.realpath(path)).is_relative_to(home):
            raise ValueError(f"Expected images inside {folder}, got a link that leaves it: {path}.")
    return found


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts "s2" before "s10"."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d{1,9})", text) if p]


def read_image(
    path: Path, *, shrink_to: tuple[int, int] | None = None
) -> Float[np.ndarray, "h w c"]:
    """Reads one image of at most 2^24 pixels.

    Args:
      path: of a PGM, PNG, JPEG, BMP or GIF file.
      shrink_to: (h, w) to which it is made grey and rescaled, if it is to be.

    Returns:
      Grey (c = 1) or coloured (c = 3) pixels in [0, 1].

    Raises:
      ValueError: if it is damaged or too large.
    """
    raw = _files.whole(path)
    if path.suffix.lower() == ".pgm" and shrink_to is None:
        return _pgm(raw, str(path))
    return _by_pillow(raw, str(path), shrink_to)


def _pgm(raw: bytes, name: str) -> Float[np.ndarray, "h w 1"]:
    """Reads a portable grey map: P5 in one or two bytes a pixel, or P2 in decimals."""
    head = _PGM.match(raw[:4096])
    if head is None:
        raise ValueError(
            f"Expected P2 or P5, width, height and maximum in {name}, got {raw[:16]!r}."
        )
    width, height, top = (int(number) for number in head.groups()[1:])
    if not (0 < width * height <= _LARGEST_IMAGE and 0 < top < 65536):
        raise ValueError(
            f"Expected 1 to 2^24 pixels of at most 65535 in {name}, "
            f"its header says {width} x {height} of {top}."
        )
    if head[1] == b"P2":
        words = raw[head.end() :].split()
        if len(words) != width * height or not all(w.isdigit() and len(w) < 6 for w in words):
            raise ValueError(f"Expected {width * height} numbers in {name}, got {len(words)}.")
        pixels = np.array([int(word) for word in words])
    else:
        kind = np.dtype(np.uint8 if top < 256 else ">u2")
        if len(raw) - head.end() < width * height * kind.itemsize:
            raise ValueError(f"Expected {width} x {height} pixels in {name}: it is truncated.")
        pixels = np.frombuffer(raw, kind, count=width * height, offset=head.end())
    if pixels.max() > top:
        raise ValueError(f"Expected pixels of at most {top} in {name}, got {pixels.max()}.")
    return (pixels / np.float32(top)).astype(np.float32).reshape(height, width, 1)


def _by_pillow(
    raw: bytes, name: str, shrink_to: tuple[int, int] | None
) -> Float[np.ndarray, "h w c"]:
    from PIL import Image

    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(raw), formats=("PNG", "JPEG", "BMP", "GIF", "PPM")) as image,
        ):
            if not 0 < image.width * image.height <= _LARGEST_IMAGE:
                raise ValueError(f"it says {image.width} x {image.height} pixels, above 2^24")
            is_grey = shrink_to is not None or image.mode in ("1", "L", "LA")
            picture = image.convert("L" if is_grey else "RGB")
            if shrink_to is not None:
                picture = picture.resize((shrink_to[1], shrink_to[0]))
            pixels = np.asarray(picture)
    except Exception as e:  # a damaged image makes Pillow raise whatever its decoder met
        raise ValueError(f"Expected an image at {name}: {_files.one_line(e)}.") from None
    return scaled(pixels.reshape(*pixels.shape[:2], -1))


def scaled(pixels: UInt8[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Bytes as float32 in [0, 1].

    Args:
      pixels: 0 to 255.

    Returns:
      A new array of the same shape.
    """
    scaled = pixels.astype(np.float32, order="C")
    scaled /= 255
    return scaled
