"""Reads images in published raw layouts: idx, CIFAR's binary version, folders by class.

`augment` adds flipped, shifted, brighter and darker copies.

In the shapes below `n` counts images of `h` rows, `w` columns and `c` channels.
"""

import io
import math
import os
import re
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from jaxpriv import _check, _files
from jaxpriv.data import _preprocessing
from jaxpriv.data.dataset import Dataset

__all__ = ["augment", "read_cifar", "read_folder", "read_idx", "read_image"]

_SUFFIXES = (
    *(".pgm", ".ppm", ".png", ".jpg", ".jpeg", ".bmp", ".gif"),
    *(".webp", ".tif", ".tiff"),
)
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP", "TIFF")
_MAX_PIXEL_BYTES = _files.GIB // 4  # of one file; float32 needs four times as many
_MAX_PIXELS = 2**24  # of one image
_IDX_BYTES = 0x08  # type code of unsigned bytes


def read_idx(folder: Path, *, name: str, num_classes: int = 10) -> Dataset:
    """Reads MNIST's layout: `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, plain or `.gz`.

    Args:
      folder: folder that contains the four files.
      name: name of the data set.
      num_classes: number of classes.

    Returns:
      Training and test images in [0, 1].

    Raises:
      ValueError: if a file is missing or damaged, or if its header does not match its size.

    References:
      LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998.

    Example:
      >>> import pathlib, struct, tempfile
      >>> with tempfile.TemporaryDirectory() as name:
      ...     folder = pathlib.Path(name)
      ...     for part in ("train", "t10k"):
      ...         pixels = struct.pack(">4I", 0x803, 2, 1, 3) + bytes([0, 0, 0, 255, 255, 255])
      ...         _ = (folder / f"{part}-images-idx3-ubyte").write_bytes(pixels)
      ...         labels = struct.pack(">2I", 0x801, 2) + bytes([0, 1])
      ...         _ = (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
      ...     dataset = read_idx(folder, name="stripes", num_classes=2)
      >>> dataset.x.shape, dataset.y.tolist()
      ((4, 1, 3, 1), [0, 1, 0, 1])
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
        x=_preprocessing.bytes_to_unit(np.concatenate(x)[..., None]),
        y=np.concatenate(y).astype(np.int32),
        name=name,
        num_classes=num_classes,
        source=f"idx files in {folder}",
        is_test=np.repeat([False, True], sizes),
    )


def _idx(folder: Path, name: str, *, rank: int) -> UInt8[np.ndarray, "..."]:
    """Reads an idx file after comparing its header with the number of bytes that follow."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), folder / name)
    raw, start = _files.read_bytes(path), 4 + 4 * rank
    is_zipped = path.suffix == ".gz"
    head = _files.gunzip(raw, max_bytes=start, name=path.name) if is_zipped else raw
    head = head[:start]
    if len(head) < start:
        raise ValueError(f"Expected a header of {start} bytes in {path}, got {len(head)}.")
    magic, *shape = struct.unpack(f">{1 + rank}I", head)
    if magic != (_IDX_BYTES << 8) + rank:
        raise ValueError(
            f"Expected the magic number {(_IDX_BYTES << 8) + rank} in {path}, got {magic}."
        )
    size = math.prod(shape)
    if not 0 < size <= _MAX_PIXEL_BYTES:
        raise ValueError(
            f"Expected 1 to {_MAX_PIXEL_BYTES} bytes after the header of {path}, "
            f"which announces {size}."
        )
    body = _files.gunzip(raw, max_bytes=start + size, name=path.name) if is_zipped else raw
    if len(body) != start + size:
        count = "more" if len(body) > start + size else f"{len(body) - start}"
        raise ValueError(f"Expected {size} bytes after the header of {path}, got {count}.")
    return np.frombuffer(body, np.uint8, offset=start).reshape(shape)


def read_cifar(folder: Path, *, num_classes: int) -> Dataset:
    """Reads the binary version of CIFAR-10 or CIFAR-100; the pickled version is never opened.

    A record consists of its label and 3072 bytes, channel by channel. CIFAR-100 has a coarse
    label, which is dropped, before the fine one.

    Args:
      folder: folder with `data_batch_{1..5}.bin` and `test_batch.bin`, or with `train.bin` and
        `test.bin`, or with the published archive of them.
      num_classes: 10 or 100.

    Returns:
      Training and test images in [0, 1].

    Raises:
      ValueError: if a file is missing, if its size is not a multiple of that of a record, or if
        a label is out of range.

    References:
      Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for name in ("train.bin", "test.bin"):
      ...         record = bytes([3, 42]) + bytes(1024) + bytes([255] * 1024) + bytes(1024)
      ...         _ = pathlib.Path(folder, name).write_bytes(record)
      ...     dataset = read_cifar(pathlib.Path(folder), num_classes=100)
      >>> dataset.x.shape, dataset.y.tolist(), dataset.x[0, 0, 0].tolist()
      ((2, 32, 32, 3), [42, 42], [0.0, 1.0, 0.0])
    """
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if num_classes == 10 else ["train.bin"]
    test = "test_batch.bin" if num_classes == 10 else "test.bin"
    subfolder = "cifar-10-batches-bin" if num_classes == 10 else "cifar-100-binary"
    archive = f"cifar-{num_classes}-binary.tar.gz"
    files = _files.read_named(folder, [*train, test], subfolder=subfolder, archive=archive)
    first = 1 if num_classes == 10 else 2
    rows = []
    for name, raw in files.items():
        if len(raw) == 0 or len(raw) % (first + 3072) or len(raw) > _MAX_PIXEL_BYTES:
            raise ValueError(
                f"Expected records of {first + 3072} bytes in {folder / name}, "
                f"got {len(raw)} bytes."
            )
        rows.append(np.frombuffer(raw, np.uint8).reshape(-1, first + 3072))
    sizes = [len(r) for r in rows]
    table = np.concatenate(rows)
    pixels = table[:, first:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Dataset(
        x=_preprocessing.bytes_to_unit(pixels),
        y=table[:, first - 1].astype(np.int32),
        name=f"cifar{num_classes}",
        num_classes=num_classes,
        source=f"binary version in {folder}",
        is_test=np.repeat([name == test for name in files], sizes),
    )


def read_folder(
    folder: Path,
    *,
    name: str,
    suffixes: tuple[str, ...] = _SUFFIXES,
    depth: int = 1,
    shrink_to: tuple[int, int] | None = None,
) -> Dataset:
    """Reads a folder of images by class: `folder/CLASS/IMAGE`.

    All images must have one size. If some are grey and some coloured, all become coloured. Files
    and folders whose names begin with a dot are ignored. Other files that are not images, images
    elsewhere and empty classes are left out, with a note. Links that leave `folder` are refused.

    Args:
      folder: folder that contains a folder for each class.
      name: name of the data set.
      suffixes: endings of image files.
      depth: number of folders between `folder` and an image; the innermost is the class.
      shrink_to: size (h, w) to which images are rescaled after conversion to grey; None keeps
        size and colours.

    Returns:
      Images in [0, 1]; classes in the natural order of their folders' names (s2 before s10).

    Raises:
      ValueError: if there are no images, or if one is damaged, has another size or lies outside
        the folder.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> from PIL import Image
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for i, name in enumerate(["ann", "bob"]):
      ...         pathlib.Path(folder, name).mkdir()
      ...         face = Image.fromarray(np.full((4, 3), 100 * i, np.uint8))
      ...         face.save(f"{folder}/{name}/1.png")
      ...     faces = read_folder(pathlib.Path(folder), name="faces")
      >>> faces.x.shape, faces.class_names
      ((2, 4, 3, 1), ('ann', 'bob'))
    """
    paths, notes = _find(folder, suffixes, depth)
    names = sorted({p.parent.name for p in paths}, key=_natural)
    number = {c: i for i, c in enumerate(names)}
    paths.sort(key=lambda p: (number[p.parent.name], _natural(p.name)))
    pictures: list[np.ndarray] = []
    for path in paths:
        picture = read_image(path, shrink_to=shrink_to)
        if pictures and picture.shape[:2] != pictures[0].shape[:2]:
            sizes = ["{} x {}".format(*p.shape[:2]) for p in (pictures[0], picture)]
            raise ValueError(
                f"Expected images of one size, got {sizes[0]} in {paths[0]} and {sizes[1]} in "
                f"{path}: resize them first."
            )
        if len(paths) * picture.size > _files.MAX_BYTES // 4:
            raise ValueError(f"Expected at most 8 GiB of pixels in {folder}, got more.")
        pictures.append(picture)
    channels = max(picture.shape[2] for picture in pictures)
    num_grey = sum(picture.shape[2] < channels for picture in pictures)
    if num_grey:
        notes.append(f"Made {num_grey} grey images coloured, as the other images are.")
        pictures = [np.repeat(p, channels // p.shape[2], axis=2) for p in pictures]
    if shrink_to is not None:
        notes.append(f"Made all images grey, {shrink_to[0]} x {shrink_to[1]}.")
    return Dataset(
        x=np.stack(pictures),
        y=np.array([number[p.parent.name] for p in paths], np.int32),
        name=name,
        num_classes=len(names),
        class_names=tuple(names),
        source=f"images in {folder}",
        notes=tuple(notes),
    )


def _find(folder: Path, suffixes: tuple[str, ...], depth: int) -> tuple[list[Path], list[str]]:
    """Finds images at one depth below a folder, and describes the files left out."""
    if not folder.is_dir():
        raise ValueError(f"Expected a folder of images by class at {folder}, got none.")
    files = [p for p in folder.glob("*/" * depth + "*") if not _is_hidden(p, folder)]
    paths = [p for p in files if p.suffix.lower() in suffixes]
    if not paths:
        deeper = next((p for p in folder.rglob("*") if p.suffix.lower() in suffixes), None)
        hint = "" if deeper is None else f", but {deeper}: name the folder of the class folders"
        raise ValueError(
            f"Expected images ({', '.join(suffixes)}) in {folder}/{'CLASS/' * depth}, got none"
            f"{hint}."
        )
    home = os.path.realpath(folder)
    for path in paths:
        if not Path(os.path.realpath(path)).is_relative_to(home):
            raise ValueError(f"Expected images inside {folder}, got a link that leaves it: {path}.")
    rest = {p for p in files if p.is_file()} - set(paths)
    elsewhere = {
        p
        for p in folder.rglob("*")
        if p.suffix.lower() in suffixes and p.is_file() and not _is_hidden(p, folder)
    } - set(paths)
    classes = [p for p in folder.glob("/".join("*" * depth)) if not _is_hidden(p, folder)]
    empty = {p for p in classes if p.is_dir() and not any(p.iterdir())}
    left_out = {
        "files that are not images": rest,
        "images that are not in the folder of a class": elsewhere,
        "empty folders": empty,
    }
    return paths, [
        f"Left out {len(missed)} {kind}: {_named(missed, folder)}."
        for kind, missed in left_out.items()
        if missed
    ]


def _named(paths: set[Path], folder: Path) -> str:
    """Lists up to five paths below a folder."""
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _is_hidden(path: Path, folder: Path) -> bool:
    """Returns whether an editor or operating system made the file, as `.ipynb_checkpoints`."""
    return any(
        part.startswith(".") or part in ("__MACOSX", "Thumbs.db", "desktop.ini")
        for part in path.relative_to(folder).parts
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a key that sorts "s2" before "s10"."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d{1,9})", text) if p]


def read_image(
    path: Path, *, shrink_to: tuple[int, int] | None = None
) -> Float[np.ndarray, "h w c"]:
    """Reads an image of at most 2^24 pixels and applies its EXIF orientation.

    Palettes become colours, 16-bit grey keeps its precision, and transparent pixels are white. Of
    several frames the first one is read.

    Args:
      path: a PGM, PNG, JPEG, BMP, GIF, WebP or TIFF file.
      shrink_to: size (h, w) to which the image is rescaled after conversion to grey; None keeps
        size and colours.

    Returns:
      Grey (c = 1) or coloured (c = 3) pixels in [0, 1].

    Raises:
      ValueError: if the file is damaged or too large.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "checker.pgm")
      ...     _ = path.write_bytes(b"P5 2 2 255 " + bytes([0, 255, 255, 0]))
      ...     pixels = read_image(path)
      >>> pixels[..., 0].tolist()
      [[0.0, 1.0], [1.0, 0.0]]
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    raw = _files.read_bytes(path)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(raw), formats=_FORMATS) as image,
        ):
            if not 0 < image.width * image.height <= _MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than 2^24")
            picture = ImageOps.exif_transpose(image)
            if shrink_to is not None:
                picture = picture.convert("L").resize((shrink_to[1], shrink_to[0]))
            return _pixels(picture)
    except UnidentifiedImageError:
        raise ValueError(
            f"Expected an image at {path}, got a file that is damaged or of another kind."
        ) from None
    except Exception as e:  # Pillow passes on the errors of its decoders, of many types
        raise ValueError(f"Expected an image at {path}: {_files.one_line(e)}.") from None


def _pixels(image: Any) -> Float[np.ndarray, "h w c"]:
    """Converts an image of any mode to grey or coloured pixels in [0, 1]."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits per pixel, which some formats widen to 32
        pixels = np.asarray(image, np.float32) / np.float32(65535)
        if not 0 <= pixels.min() <= pixels.max() <= 1:
            raise ValueError("its pixels exceed 16 bits")
        return pixels[..., None]
    if image.mode == "F":
        raise ValueError("its pixels are floats without a known range")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        is_grey = image.mode in ("1", "L", "LA", "La")
        image = Image.alpha_composite(white, image.convert("RGBA"))
        image = image.convert("L" if is_grey else "RGB")
    elif image.mode == "P":
        colours = np.asarray(image.getpalette("RGB")).reshape(-1, 3)
        image = image.convert("L" if (colours == colours[:, :1]).all() else "RGB")
    elif image.mode != "L":
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = np.asarray(image)
    return _preprocessing.bytes_to_unit(pixels.reshape(*pixels.shape[:2], -1))


def augment(
    rng: np.random.Generator,
    dataset: Dataset,
    *,
    copies: int,
    max_shift: int,
    max_brightness: float,
) -> Dataset:
    """Adds random copies of every image: flipped, shifted, and brighter or darker.

    A copy is mirrored with probability 1/2, shifted by up to `max_shift` pixels in either direction
    (the border is repeated), and multiplied by a factor in 1 - max_brightness to
    1 + max_brightness; pixels above 1 become 1. All three are uniform.

    An image and its copies depend on each other. Without a group of its own, the result has the
    original image of each record as its group, so that `Dataset.split` does not separate them: a
    test image whose copy was trained on would look like a new one.

    Args:
      rng: random generator.
      dataset: images [n, h, w, c] in [0, 1].
      copies: number of copies of each image; 10 turn 20 images of a person into 220.
      max_shift: largest shift, in pixels; less than h and w.
      max_brightness: largest relative change of the brightness, in [0, 1).

    Returns:
      The images in their order, then the first copy of each, and so on.

    Raises:
      ValueError: if the records are not images in [0, 1], or a number is out of range.

    References:
      Zhang et al., Broadening Differential Privacy for Deep Learning Against Model Inversion
      Attacks, 2020, section V, who create 200 images of a person from 20.

    Example:
      >>> from jaxpriv import data
      >>> x = np.linspace(0, 1, 2 * 5 * 4, dtype=np.float32).reshape(2, 5, 4, 1)
      >>> faces = data.Dataset(x=x, y=np.array([0, 1]), name="toy", num_classes=2, source="none")
      >>> many = augment(
      ...     np.random.default_rng(0), faces, copies=2, max_shift=1, max_brightness=0.2
      ... )
      >>> many.x.shape, many.y.tolist(), many.group.tolist()
      ((6, 5, 4, 1), [0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1])
    """
    _check.positive_int(copies=copies)
    _check.non_negative_int(max_shift=max_shift)
    _check.half_open_unit(max_brightness=max_brightness)
    x = dataset.x
    if x.ndim != 4 or not 0 <= x.min() <= x.max() <= 1:
        raise ValueError(f"Expected images [n, h, w, c] in [0, 1], got shape {list(x.shape)}.")
    if max_shift >= min(x.shape[1:3]):
        raise ValueError(
            f"Expected max_shift < {min(x.shape[1:3])}, the smaller side of the images, "
            f"got max_shift={max_shift}."
        )
    parts = [x]
    for _ in range(copies):
        parts.append(_copy(rng, x, max_shift, max_brightness))

    def repeated(values):
        return None if values is None else np.tile(values, copies + 1)

    group = np.arange(len(x)) if dataset.group is None else dataset.group
    note = f"Added {copies} copies of each image, flipped, shifted and of other brightness."
    return replace(
        dataset,
        x=np.concatenate(parts),
        y=np.tile(dataset.y, copies + 1),
        group=repeated(group),
        is_test=repeated(dataset.is_test),
        notes=(*dataset.notes, note),
    )


def _copy(
    rng: np.random.Generator,
    x: Float[np.ndarray, "n h w c"],
    max_shift: int,
    max_brightness: float,
) -> Float[np.ndarray, "n h w c"]:
    """Returns a random copy of every image."""
    n, height, width, _ = x.shape
    is_flipped = rng.random(n) < 0.5
    down, right = rng.integers(-max_shift, max_shift + 1, size=(2, n))
    factor = 1 + max_brightness * rng.uniform(-1, 1, size=n)
    row = np.clip(np.arange(height) - down[:, None], 0, height - 1)
    column = np.clip(np.arange(width) - right[:, None], 0, width - 1)
    column = np.where(is_flipped[:, None], width - 1 - column, column)
    moved = x[np.arange(n)[:, None, None], row[:, :, None], column[:, None, :]]
    return np.minimum(moved * factor[:, None, None, None].astype(x.dtype), 1)
