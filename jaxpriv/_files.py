"""Untrusted reads and the one atomic write.

Sizes in headers are checked against the file before anything is allocated.
"""

import io
import math
import os
import tarfile
import tempfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

GIB = 2**30
LARGEST_BYTES = 8 * GIB
_LARGEST_RATIO = 1032  # deflate cannot expand by more
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError)


def one_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def allowance(num_bytes: int) -> int:
    """The most bytes that `num_bytes` compressed ones may become: 1 GiB, or 20 to 1 beyond."""
    return min(max(GIB, 20 * num_bytes), _LARGEST_RATIO * num_bytes + 4096, LARGEST_BYTES)


def require(path: Path) -> int:
    """Returns the size of a file that must exist.

    Raises:
      ValueError: if the file does not exist or is larger than 8 GiB.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ValueError(f"Expected a file at {path}, found nothing.") from None
    except (OSError, ValueError) as e:
        raise ValueError(f"Expected a file at {path}: {one_line(e)}.") from None
    if not path.is_file():
        raise ValueError(f"Expected a file at {path}, found a folder or device.")
    if size > LARGEST_BYTES:
        raise ValueError(f"Expected at most 8 GiB in {path}, got {size} bytes.")
    return size


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Writes a file completely or not at all; a file of that name is replaced.

    The bytes are on the disk before the file gets its name, so neither a killed process nor a
    power cut leaves a part of it.

    Args:
      path: of the file, in a folder that exists.
      data: all of its bytes.
      private: readable by its owner alone; otherwise by everyone.

    Raises:
      OSError: if the folder cannot be written to.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o600 if private else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def whole(path: Path) -> bytes:
    """A file's bytes.

    Raises:
      ValueError: as `require`, or if the file may not be read.
    """
    require(path)
    try:
        return path.read_bytes()
    except OSError as e:
        raise ValueError(f"Expected a file to read at {path}: {one_line(e)}.") from None


def gunzip(raw: bytes, *, at_most: int, name: str) -> bytes:
    """Decompresses to `at_most` bytes; one more stands for all that would follow.

    Raises:
      ValueError: if the bytes are no gzip stream, or it ends early.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        out = stream.decompress(raw, at_most + 1)
    except zlib.error as e:
        raise ValueError(f"Expected gzip in {name}: {one_line(e)}.") from None
    if not stream.eof and len(out) <= at_most:
        raise ValueError(f"Expected {name} to go on after {len(out)} bytes: it is truncated.")
    return out


def members(
    folder: Path, names: Collection[str], *, inside: str = "", archive: str = ""
) -> dict[str, bytes]:
    """The bytes of the named files: in a folder, or in a tar archive that stands there.

    An archive is read in memory and never unpacked, so nothing in it can leave the folder.

    Args:
      folder: where to look.
      names: of the files.
      inside: the folder that the published archive unpacks to.
      archive: name of the published archive, `.tgz` or `.tar.gz`.

    Returns:
      All of the names with their bytes, in the order given.

    Raises:
      ValueError: if a file is missing, or too large, or the archive is damaged.
    """
    home = folder / inside if inside and (folder / inside).is_dir() else folder
    if archive and (folder / archive).is_file() and not any((home / n).exists() for n in names):
        contents = _from_tar(folder / archive, names)
        for name in names:
            if name not in contents:
                raise ValueError(f"Expected the file {name} in {folder / archive}, found none.")
        return {name: contents[name] for name in names}
    return {name: whole(home / name) for name in names}


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than its limit."""

    def __init__(self, stream: io.BufferedIOBase, limit: int):
        self._stream, self._left, self._limit = stream, limit, limit

    def read(self, size: int = -1) -> bytes:
        """Reads `size` bytes of at most the limit."""
        out = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(out)
        if self._left < 0:
            raise ValueError(f"it holds more than {self._limit} bytes")
        return out


def _from_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    import gzip

    contents: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream:
            bounded: Any = _Bounded(stream, allowance(path.stat().st_size))
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for info in archive:
                    name = info.name.rsplit("/", 1)[-1]
                    file = archive.extractfile(info) if info.isreg() and name in names else None
                    if file is not None:
                        contents[name] = file.read()
                        if len(contents) == len(names):
                            break
    except _DAMAGE as e:
        raise ValueError(f"Expected a tar.gz archive at {path}: {one_line(e)}.") from None
    return contents


def open_npz(path: Path, kind: str) -> zipfile.ZipFile:
    """Opens an .npz.

    Args:
      path: of the file.
      kind: what the user hoped for, in words.

    Raises:
      ValueError: if there is none, or it is damaged.
    """
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise ValueError(f"Expected a {kind} file, found nothing at {path}.") from None
    except IsADirectoryError:
        raise ValueError(f"Expected a {kind} file, found a folder at {path}.") from None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as e:
        raise ValueError(f"Expected an .npz file at {path}: {one_line(e)}.") from None


def npz_array(archive: zipfile.ZipFile, key: str) -> Shaped[np.ndarray, "..."]:
    """Reads one array after holding its header against the sizes of member and archive.

    Raises:
      ValueError: if the member is damaged, holds objects, or promises more than it can hold.
    """
    try:
        info = archive.getinfo(f"{key}.npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("its compression is none that NumPy writes")
        # NumPy reads a header of whatever length is promised before it objects, and warns of
        # those that Python 2 wrote.
        with archive.open(info) as stream, warnings.catch_warnings(action="ignore"):
            shape, dtype = _header(io.BytesIO(stream.read(2**16 + 16)))
        size = math.prod(shape) * dtype.itemsize
        largest = allowance(_length(archive))
        if dtype.hasobject or min(shape, default=0) < 0 or size > min(info.file_size, largest):
            raise ValueError(f"{dtype} of shape {shape} does not fit")
        with archive.open(info) as stream, warnings.catch_warnings(action="ignore"):
            return np.lib.format.read_array(stream, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as e:
        where = archive.filename
        raise ValueError(f"Expected an .npz file at {where}: {one_line(e)}.") from None
    except (ValueError, SyntaxError, TypeError, RuntimeError, tokenize.TokenError) as e:
        raise ValueError(f"Expected an array of numbers as {key!r}: {one_line(e)}.") from None


def _length(archive: zipfile.ZipFile) -> int:
    stream = archive.fp
    assert stream is not None
    return stream.seek(0, io.SEEK_END)


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    return shape, dtype
