"""Image readers: the published layouts are read, everything else is one line."""

import gzip
import itertools
import os
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest

from jaxpriv import data
from jaxpriv.data import images
from tests import oracles
from tests.data import layouts


def check_refused(message, read, *args, **kwargs):
    with pytest.raises(ValueError, match=r"^Expected") as caught:
        read(*args, **kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(tmp_path, zipped):
    loaded = images.read_idx(layouts.lay(tmp_path, layouts.mnist(zipped)), name="mnist")
    assert loaded.x.shape == (9, 5, 4, 1)
    assert loaded.x[:, 0, 0, 0].tolist() == [
        np.float32(i / 255) for i in (1, 2, 3, 4, 5, 6, 1, 2, 3)
    ]
    assert loaded.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert loaded.is_test.tolist() == [False] * 6 + [True] * 3


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        (IMAGES, layouts.idx(np.zeros((6, 5, 4), np.uint8), magic=2052), "magic number 2051"),
        (IMAGES, layouts.mnist()[IMAGES][:-1], "got 119"),
        (IMAGES, layouts.mnist()[IMAGES] + b"1", "got more"),
        (IMAGES, b"\0\0\x08", "header of 16 bytes"),
        (IMAGES, struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), "which announces"),
        (IMAGES, struct.pack(">4I", 2051, 6, 0, 4), "which announces 0"),
        (IMAGES, layouts.idx(np.zeros((5, 5, 4), np.uint8)), "as many labels as images"),
        (IMAGES, layouts.idx(np.zeros((6, 4, 4), np.uint8)), "one size"),
        (LABELS, layouts.idx(np.full(6, 10, np.uint8)), "labels from 0 to 9"),
        (LABELS, layouts.idx(np.zeros((6, 1), np.uint8)), "magic number 2049"),
    ],
)
def test_damaged_idx_is_one_line(tmp_path, name, raw, message):
    layouts.lay(tmp_path, {**layouts.mnist(), name: raw})
    check_refused(message, images.read_idx, tmp_path, name="mnist")


def test_damaged_gzip_is_one_line(tmp_path):
    files = layouts.mnist(zipped=True)
    whole = files[IMAGES + ".gz"]
    bomb = gzip.compress(layouts.mnist()[IMAGES] + bytes(2**26))
    for raw, message in (
        (whole[:-3], "truncated"),
        (whole[:20], "truncated"),
        (b"not gzip", "Expected gzip"),
        (whole[:-8] + b"\0" * 8, "Expected gzip"),
        (bomb, "got more"),
    ):
        layouts.lay(tmp_path, {**files, IMAGES + ".gz": raw})
        tracemalloc.start()
        check_refused(message, images.read_idx, tmp_path, name="mnist")
        assert tracemalloc.get_traced_memory()[1] < 2**21
        tracemalloc.stop()


def test_a_missing_idx_file_is_named(tmp_path):
    files = layouts.mnist()
    del files["t10k-labels-idx1-ubyte"]
    check_refused(
        "t10k-labels-idx1-ubyte", images.read_idx, layouts.lay(tmp_path, files), name="mnist"
    )


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize("form", ["flat", "folder", "archive"])
def test_cifar(tmp_path, num_classes, form):
    files = layouts.cifar(num_classes)
    inside = "cifar-10-batches-bin/" if num_classes == 10 else "cifar-100-binary/"
    if form == "archive":
        files = dict(reversed(files.items()))  # the order in an archive is no order
        files = {f"cifar-{num_classes}-binary.tar.gz": layouts.tgz(files, inside)}
    elif form == "folder":
        files = {inside + name: raw for name, raw in files.items()}
    loaded = images.read_cifar(layouts.lay(tmp_path, files), num_classes=num_classes)
    n = 12 if num_classes == 10 else 4
    assert loaded.x.shape == (n, 32, 32, 3)
    assert np.round(loaded.x[0, 0, :2] * 255).tolist() == [[1, 20, 30], [10, 20, 30]]
    assert loaded.y.tolist() == [0, 1] * (n // 2)
    assert loaded.is_test.tolist() == [False] * (n - 2) + [True] * 2


def test_damaged_cifar_is_one_line(tmp_path):
    files = layouts.cifar(10)
    for raw, message in (
        (b"", "records of 3073 bytes"),
        (files["test_batch.bin"][:-1], "records of 3073 bytes"),
        (b"\x0a" + files["test_batch.bin"][1:], "labels from 0 to 9"),
    ):
        layouts.lay(tmp_path, {**files, "test_batch.bin": raw})
        check_refused(message, images.read_cifar, tmp_path, num_classes=10)
    (tmp_path / "test_batch.bin").unlink()
    check_refused("test_batch.bin", images.read_cifar, tmp_path, num_classes=10)


def test_archives_are_read_in_memory_and_links_in_them_are_not_followed(tmp_path):
    files = layouts.cifar(100)
    outside = layouts.tgz(files, "../../")
    layouts.lay(tmp_path / "a" / "b", {"cifar-100-binary.tar.gz": outside})
    images.read_cifar(tmp_path / "a" / "b", num_classes=100)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "cifar-100-binary.tar.gz"]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        link = layouts.tgz({"train.bin": b"", "test.bin": b""}, kind=kind)
        layouts.lay(tmp_path, {"cifar-100-binary.tar.gz": link})
        check_refused("found none", images.read_cifar, tmp_path, num_classes=100)
    for raw in (b"", b"no archive", layouts.tgz(files)[:60]):
        layouts.lay(tmp_path, {"cifar-100-binary.tar.gz": raw})
        check_refused("cifar-100-binary.tar.gz", images.read_cifar, tmp_path, num_classes=100)


def test_a_folder_of_images_by_class(tmp_path):
    files = {**layouts.faces(), "notes/read.me": b"", "s1/target.jpg": b"not an image"}
    loaded = images.read_folder(layouts.lay(tmp_path, files), name="orl", suffixes=(".pgm",))
    assert loaded.x.shape == (6, 4, 3, 1)
    assert loaded.y.tolist() == [0, 0, 1, 1, 2, 2]
    # s2 comes before s10.
    assert np.round(loaded.x[:, 0, 0, 0] * 255).tolist() == [1, 2, 11, 12, 21, 22]


def test_pillow_reads_what_it_writes(tmp_path):
    colour = np.arange(36).reshape(4, 3, 3)
    layouts.lay(tmp_path, {"a/1.png": layouts.png(colour), "b/1.png": layouts.png(colour + 9)})
    loaded = images.read_folder(tmp_path, name="own")
    np.testing.assert_allclose(loaded.x * 255, np.stack([colour, colour + 9]), atol=1e-4)
    small = images.read_folder(tmp_path, name="faces", shrink_to=(2, 5))
    assert small.x.shape == (2, 2, 5, 1)


def test_pgm_of_two_bytes_and_in_decimals(tmp_path):
    values = np.array([[0, 1000], [500, 250]])
    plain = b"P2 2 2 1000\n0 1000\n500 250\n"
    layouts.lay(tmp_path, {"a.pgm": layouts.pgm(values, top=1000), "b.pgm": plain})
    for name in ("a.pgm", "b.pgm"):
        picture = images.read_image(tmp_path / name)
        np.testing.assert_allclose(picture[..., 0], values / 1000, atol=1e-5)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "a.pgm, got a file that is damaged or of another kind"),
        (b"<svg></svg>", "a.pgm, got a file that is damaged or of another kind"),
        (b"P5 2 2 255\n123", "a.pgm: image file is truncated"),
        (b"P5 9999 9999 255\n123", "a.pgm: 9999 x 9999 pixels are more than 2^24"),
        (b"P5 99999 99999 255\n123", "a.pgm: Image size (9999800001 pixels)"),
        (b"P5 1 1 70000\n11", "a.pgm: maxval must be greater than 0 and less than 65536"),
        (b"P2 2 1 9\n1\n", "a.pgm: not enough image data"),
        (b"P2 1 1 9\n-1\n", "a.pgm: Channel value is negative"),
    ],
)
def test_damaged_pgm_is_one_line(tmp_path, raw, message):
    layouts.lay(tmp_path, {"a.pgm": raw})
    check_refused(message, images.read_image, tmp_path / "a.pgm")


GREY = (np.arange(12).reshape(3, 4) * 20).astype(np.uint8)


def read(tmp_path, image, name="a.png", **options):
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    image.save(tmp_path / name, **options)
    return images.read_image(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_grey_of_16_bits_keeps_its_precision(tmp_path, name):
    pixels = (np.arange(12).reshape(3, 4) * 5001).astype(np.uint16)
    np.testing.assert_allclose(read(tmp_path, pixels, name)[..., 0], pixels / 65535, atol=1e-7)


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, 3), (8, 1)])
def test_the_orientation_of_exif_is_followed(tmp_path, orientation, turns):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = read(tmp_path, GREY, exif=exif)
    np.testing.assert_allclose(turned[..., 0], np.rot90(GREY / 255, turns), atol=1e-6)


def test_palettes_transparency_and_single_bits(tmp_path):
    from PIL import Image

    colour = np.stack([GREY, GREY // 2, GREY * 0 + 255], -1)
    palette = Image.fromarray(colour).quantize(64)
    expected = np.asarray(palette.convert("RGB")) / 255
    np.testing.assert_allclose(read(tmp_path, palette), expected, atol=1e-6)
    alpha = np.where(GREY > 100, 255, 0).astype(np.uint8)
    seen = read(tmp_path, np.concatenate([colour, alpha[..., None]], -1))
    white = np.where(alpha[..., None] > 0, colour / 255, 1.0)
    np.testing.assert_allclose(seen, white, atol=1e-6)
    bits = Image.fromarray((GREY > 100).astype(np.uint8) * 255).convert("1")
    assert (read(tmp_path, bits)[..., 0] == (GREY > 100)).all()
    with pytest.raises(ValueError, match=r"a\.tif: its pixels are floats without a known range"):
        read(tmp_path, GREY.astype(np.float32), "a.tif")


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints/1.png", "a/._1.png", "__MACOSX/a/1.png"])
def test_hidden_files_are_neither_classes_nor_pictures(tmp_path, hidden):
    files = {**layouts.faces(suffix="png"), hidden: b"damaged"}
    loaded = images.read_folder(layouts.lay(tmp_path, files), name="own")
    assert loaded.class_names == ("s1", "s2", "s10")
    assert loaded.notes == ()


@pytest.mark.parametrize("suffix", ["webp", "tiff", "jpg", "bmp", "gif"])
def test_every_format_counts(tmp_path, suffix):
    files = {"a/1.png": layouts.picture("png"), "b/1.png": layouts.picture("png")}
    other = layouts.picture({"jpg": "jpeg"}.get(suffix, suffix), value=3)
    loaded = images.read_folder(layouts.lay(tmp_path, {**files, f"b/2.{suffix}": other}), name="o")
    assert len(loaded) == 3


@pytest.mark.parametrize("name", ["b/photo.heic", "b/list.csv", "a/README"])
def test_files_that_are_not_images_are_named(tmp_path, name):
    files = {**layouts.faces(suffix="png"), name: b"something"}
    loaded = images.read_folder(layouts.lay(tmp_path, files), name="own")
    assert loaded.notes == (f"Left out 1 files that are not images: {name}.",)


def test_damaged_folders_are_one_line(tmp_path):
    check_refused("none, got none", images.read_folder, tmp_path / "none", name="own")
    check_refused("/CLASS/, got none", images.read_folder, tmp_path, name="own")
    deep = layouts.lay(tmp_path / "deep", {"train/a/1.png": b""})
    check_refused("but " + str(deep / "train/a/1.png"), images.read_folder, deep, name="own")
    tmp_path = tmp_path / "own"
    layouts.lay(tmp_path, {"a/1.png": layouts.png(np.zeros((4, 3)))})
    layouts.lay(tmp_path, {"b/1.png": layouts.png(np.zeros((3, 4)))})
    check_refused(
        "got 4 x 3 in " + str(tmp_path / "a/1.png"), images.read_folder, tmp_path, name="own"
    )
    layouts.lay(tmp_path, {"b/1.png": layouts.png(np.zeros((4, 3)))[:40]})
    check_refused("1.png", images.read_folder, tmp_path, name="own")
    # A header that promises 4 * 10^9 pixels.
    huge = bytearray(layouts.png(np.zeros((4, 3))))
    huge[16:24] = struct.pack(">2I", 65535, 65535)
    layouts.lay(tmp_path, {"b/1.png": bytes(huge)})
    check_refused("1.png", images.read_folder, tmp_path, name="own")


def test_links_that_leave_the_folder_are_refused(tmp_path):
    layouts.lay(tmp_path / "own", {"a/1.pgm": layouts.pgm([[1]]), "b/1.pgm": layouts.pgm([[2]])})
    layouts.lay(tmp_path / "secret", {"1.pgm": layouts.pgm([[3]])})
    os.symlink(tmp_path / "own" / "a" / "1.pgm", tmp_path / "own" / "b" / "2.pgm")
    assert len(images.read_folder(tmp_path / "own", name="own")) == 3
    os.symlink(tmp_path / "secret", tmp_path / "own" / "c")
    check_refused("leaves it", images.read_folder, tmp_path / "own", name="own")
    (tmp_path / "own" / "c").unlink()
    os.symlink(tmp_path / "own" / "b" / "loop.pgm", tmp_path / "own" / "b" / "loop.pgm")
    check_refused("loop.pgm", images.read_folder, tmp_path / "own", name="own")


def faces(n=3, shape=(6, 5, 2), **fields):
    x = np.random.default_rng(0).random((n, *shape)).astype(np.float32)
    return data.Dataset(x=x, y=np.arange(n), name="f", num_classes=n, source="none", **fields)


def augmented(dataset, seed=0, **options):
    options = {"copies": 40, "max_shift": 2, "max_brightness": 0.3} | options
    return images.augment(np.random.default_rng(seed), dataset, **options)


def slow_copy(x, flip, down, right):
    """One pixel after the other; beyond the border, the pixel at the border."""
    height, width, _ = x.shape
    source = x[:, ::-1] if flip else x
    result = np.zeros_like(x)
    for i in range(height):
        for j in range(width):
            row, column = min(max(i - down, 0), height - 1), min(max(j - right, 0), width - 1)
            result[i, j] = source[row, column]
    return result


def test_every_copy_is_a_flip_a_shift_and_a_factor():
    dataset = faces()
    many = augmented(dataset)
    assert many.x.shape == (3 * 41, 6, 5, 2)
    assert many.x.dtype == np.float32
    np.testing.assert_array_equal(many.x[:3], dataset.x)
    seen, factors = set(), []
    for i, copy in enumerate(many.x[3:]):
        original = dataset.x[i % 3]
        matches = []
        for move in itertools.product((False, True), range(-2, 3), range(-2, 3)):
            expected = slow_copy(original, *move)
            factor = float((copy / expected).max())  # a pixel that was not cut off at 1
            if np.allclose(np.minimum(expected * factor, 1), copy, atol=1e-6):
                matches.append((move, factor))
        assert len(matches) == 1
        seen.add(matches[0][0])
        factors.append(matches[0][1])
    assert {move[0] for move in seen} == {False, True}
    assert {move[1] for move in seen} == {move[2] for move in seen} == set(range(-2, 3))
    assert 0.7 <= min(factors) < 0.8
    assert 1.2 < max(factors) <= 1.3 + 1e-6


def test_copies_stay_with_their_image():
    many = augmented(faces(), copies=10)
    parts = many.split(np.random.default_rng(1), sizes={"train": 22, "test": 11})
    assert not set(parts["train"].group) & set(parts["test"].group)
    assert (many.y == many.group).all()
    people = augmented(faces(is_test=np.array([True, False, False]), group=np.array([7, 7, 8])))
    assert people.group.tolist() == [7, 7, 8] * 41
    assert people.is_test.tolist() == [True, False, False] * 41
    assert people.notes[-1].startswith("Added 40 copies")


def test_equal_generators_give_equal_copies():
    first, again, other = (augmented(faces(), seed=s).x for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "copies >= 1"),
        ({"max_shift": 5}, "max_shift < 5, the smaller side of the images, got max_shift=5"),
        ({"max_shift": 1.5}, "whole number for max_shift"),
        ({"max_shift": -1}, "max_shift >= 0"),
        ({"max_brightness": 1.0}, "0 <= max_brightness < 1"),
    ],
)
def test_augmentations_out_of_range_are_one_line(options, message):
    numbers = {"copies": 1, "max_shift": 1, "max_brightness": 0.1} | options
    rng = np.random.default_rng(0)
    check_refused(message, oracles.unhooked(images.augment), rng, faces(), **numbers)


def test_only_images_are_augmented():
    rows = data.Dataset(x=np.ones((2, 3)), y=np.arange(2), name="r", num_classes=2, source="none")
    check_refused("Expected images [n, h, w, c] in [0, 1]", augmented, rows)


def test_images_elsewhere_and_empty_classes_are_named(tmp_path):
    face = next(iter(layouts.faces().values()))
    layouts.lay(tmp_path, {**layouts.faces(), "loose.pgm": face, "s1/deeper/a.pgm": face})
    (tmp_path / "s99").mkdir()
    loaded = data.load(tmp_path)
    assert loaded.notes == (
        "Left out 2 images that are not in the folder of a class: loose.pgm, s1/deeper/a.pgm.",
        "Left out 1 empty folders: s99.",
    )
