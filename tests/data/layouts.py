"""Tiny files in the published layouts: `{file name: bytes}` for each set, and a way to lay them."""

import gzip
import io
import struct
import tarfile

import numpy as np

CENSUS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K",
    "52, Self-emp-not-inc, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, "
    "Black, Male, 0, 0, 45, Outlying-US(Guam-USVI-etc), >50K",
    "30, ?, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Female, 0, 0, 40, "
    "India, >50K",
)
HEADER = (
    "age,workclass,fnlwgt,education,educational-num,marital-status,occupation,relationship,race,"
    "gender,capital-gain,capital-loss,hours-per-week,native-country,income"
)


def lay(folder, files):
    """Writes the files below a folder and returns it."""
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return folder


def idx(array, magic=None):
    magic = 0x800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def mnist(zipped=False, sizes=(6, 3)):
    """Image i of a part is i + 1 everywhere, its label i."""
    files = {}
    for part, n in zip(("train", "t10k"), sizes, strict=True):
        pixels = np.repeat(np.arange(1, n + 1, dtype=np.uint8), 20).reshape(n, 5, 4)
        files[f"{part}-images-idx3-ubyte"] = idx(pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(n, dtype=np.uint8))
    if zipped:
        return {f"{name}.gz": gzip.compress(raw, mtime=0) for name, raw in files.items()}
    return files


def cifar(num_classes, n=2):
    """Record i of a file has label i; red 10, green 20, blue 30, but the first pixel's red is 1."""
    pixels = bytes([1] + [10] * 1023 + [20] * 1024 + [30] * 1024)
    if num_classes == 10:
        names, label = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"], b""
    else:
        names, label = ["train.bin", "test.bin"], b"\x07"
    return {name: b"".join(label + bytes([i]) + pixels for i in range(n)) for name in names}


def tgz(files, inside="", kind=tarfile.REGTYPE):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(inside + name)
            info.size, info.type, info.linkname = len(raw), kind, "/etc/passwd"
            archive.addfile(info, io.BytesIO(raw))
    return out.getvalue()


def bangkok():
    return {"bangkok": b'"1",0,1,1\n"30",1,0,0\n"2",0,0,1\n'}


def texas():
    return {"feats": b"0,1,1\n1,0,0\n", "labels": b"100\n1\n"}


def adult():
    train = "\n".join((CENSUS[0], CENSUS[2], "")).encode()
    test = "\n".join(("|1x3 Cross validator", CENSUS[1] + ".", "")).encode()
    return {"adult.data": train, "adult.test": test}


def adult_csv():
    return {"adult.csv": "\n".join([HEADER, *(row.replace(", ", ",") for row in CENSUS)]).encode()}


def pgm(array, top=255):
    array = np.asarray(array)
    height, width = array.shape
    kind = np.uint8 if top < 256 else ">u2"
    return b"P5\n# a comment\n%d %d\n%d\n" % (width, height, top) + array.astype(kind).tobytes()


def png(array):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.asarray(array, np.uint8)).save(out, "png")
    return out.getvalue()


def picture(suffix, *, value=7, depth=8):
    """A grey picture of 3 x 4 pixels in any format of Pillow."""
    from PIL import Image

    out = io.BytesIO()
    pixels = np.arange(12).reshape(3, 4) * value
    Image.fromarray(pixels.astype(np.uint8 if depth == 8 else np.uint16)).save(out, suffix)
    return out.getvalue()


def faces(people=("s1", "s2", "s10"), each=2, suffix="pgm"):
    """Picture j of person i is 10 i + j."""
    write = {"pgm": pgm, "png": png}[suffix]
    return {
        f"{person}/{j}.{suffix}": write(np.full((4, 3), 10 * i + j))
        for i, person in enumerate(people)
        for j in range(1, each + 1)
    }


def npz(compress=True, **arrays):
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    return out.getvalue()
