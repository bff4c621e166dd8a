"""Reads untrusted files, and writes files atomically.

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
MAX_BYTES = 8 * GIB
"""Size of the largest file that is read, and of the largest data set in memory."""

_MAX_DEFLATE_RATIO = 1032  # deflate cannot expand by more
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError)


def one_line(error: BaseException) -> str:
    """Returns the first line of an error's message, without its full stop."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def checked_size(path: Path) -> int:
    """Returns the size of a file in bytes.

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
    if size > MAX_BYTES:
        raise ValueError(f"Expected at most 8 GiB in {path}, got {size} bytes.")
    return size


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Writes a file completely or not at all, and replaces an existing file of that name.

    The bytes reach the disk before the file gets its name, so a killed process or a power cut
    cannot leave a partial file.

    Args:
      path: name of the file, in a folder that exists.
      data: content.
      private: whether only the owner may read the file; otherwise everyone may.

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


def read_bytes(path: Path) -> bytes:
    """Reads a file of at most 8 GiB.

    Raises:
      ValueError: as `checked_size`, or if the file cannot be read.
    """
    checked_size(path)
    try:
        return path.read_bytes()
    except OSError as e:
        raise ValueError(f"Expected a file to read at {path}: {one_line(e)}.") from None


def gunzip(raw: bytes, *, max_bytes: int, name: str) -> bytes:
    """Decompresses the beginning of a gzip stream.

    Args:
      raw: compressed bytes.
      max_bytes: number of bytes that the caller can use.
      name: name of the file, for error messages.

    Returns:
      At most max_bytes + 1 bytes; the last of them shows that the stream is longer.

    Raises:
      ValueError: if the bytes are not a gzip stream, or if it ends early.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(raw, max_bytes + 1)
    except zlib.error as e:
        raise ValueError(f"Expected gzip in {name}: {one_line(e)}.") from None
    if not stream.eof and len(content) <= max_bytes:
        raise ValueError(f"Expected {name} to go on after {len(content)} bytes: it is truncated.")
    return content


def read_named(
    folder: Path, names: Collection[str], *, subfolder: str = "", archive: str = ""
) -> dict[str, bytes]:
    """Reads files by name from a folder, or from a tar archive in that folder.

    An archive is read in memory and never unpacked, so its entries cannot leave the folder.

    Args:
      folder: folder that contains the files, the subfolder or the archive.
      names: names of the files.
      subfolder: folder that the published archive unpacks to.
      archive: name of the published archive, `.tgz` or `.tar.gz`.

    Returns:
      Content of each file by name, in the order given.

    Raises:
      ValueError: if a file is missing or too large, or if the archive is damaged.
    """
    home = folder / subfolder if subfolder and (folder / subfolder).is_dir() else folder
    if archive and (folder / archive).is_file() and not any((home / n).exists() for n in names):
        contents = _read_tar(folder / archive, names)
        for name in names:
            if name not in contents:
                raise ValueError(f"Expected the file {name} in {folder / archive}, found none.")
        return {name: contents[name] for name in names}
    return {name: read_bytes(home / name) for name in names}


def open_npz(path: Path, kind: str) -> zipfile.ZipFile:
    """Opens an .npz file.

    Args:
      path: the file.
      kind: expected content in words, for error messages.

    Raises:
      ValueError: if the file does not exist or is damaged.
    """
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise ValueError(f"Expected a {kind} file, found nothing at {path}.") from None
    except IsADirectoryError:
        raise ValueError(f"Expected a {kind} file, found a folder at {path}.") from None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as e:
        remedy = "" if Path(path).suffix == ".npz" else " numpy.savez writes one from arrays."
        raise ValueError(f"Expected an .npz file at {path}: {one_line(e)}.{remedy}") from None
    names = archive.namelist()
    wrong = [name for name in names if not name.endswith(".npy") or names.count(name) > 1]
    if wrong:
        archive.close()
        raise ValueError(
            f"Expected an .npz file of different arrays at {path}, got the entry {wrong[0]!r}"
            f"{' twice' if wrong[0].endswith('.npy') else ''}."
        )
    return archive


def npz_array(archive: zipfile.ZipFile, key: str) -> Shaped[np.ndarray, "..."]:
    """Reads an array after comparing its header with the sizes of member and archive.

    Raises:
      ValueError: if the member is damaged, contains objects, or announces more than it contains.
    """
    try:
        info = archive.getinfo(f"{key}.npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("NumPy does not write its compression")
        # NumPy reads a header of any announced length before it objects, and warns about
        # headers that Python 2 wrote.
        with archive.open(info) as stream, warnings.catch_warnings(action="ignore"):
            shape, dtype = _read_header(io.BytesIO(stream.read(2**16 + 16)))
        size = math.prod(shape) * dtype.itemsize
        limit = min(info.file_size, _max_inflated(_archive_size(archive)))
        if dtype.hasobject or min(shape, default=0) < 0 or size > limit:
            raise ValueError(f"{dtype} of shape {shape} does not fit")
        with archive.open(info) as stream, warnings.catch_warnings(action="ignore"):
            return np.lib.format.read_array(stream, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError) as e:
        name = archive.filename
        raise ValueError(f"Expected an .npz file at {name}: {one_line(e)}.") from None
    except (ValueError, SyntaxError, TypeError, RuntimeError, tokenize.TokenError) as e:
        raise ValueError(f"Expected an array of numbers as {key!r}: {one_line(e)}.") from None


class _BoundedStream(io.RawIOBase):
    """Raises ValueError once more than `limit` bytes have been read from a stream."""

    def __init__(self, stream: io.BufferedIOBase, limit: int):
        self._stream, self._remaining, self._limit = stream, limit, limit

    def read(self, size: int = -1) -> bytes:
        """Reads up to `size` bytes, or up to the limit."""
        allowed = self._remaining + 1
        content = self._stream.read(min(size, allowed) if size >= 0 else allowed)
        self._remaining -= len(content)
        if self._remaining < 0:
            raise ValueError(f"it contains more than {self._limit} bytes")
        return content


def _max_inflated(num_bytes: int) -> int:
    """Bounds the size of decompressed data: 1 GiB, or 20 times the compressed size if larger."""
    return min(max(GIB, 20 * num_bytes), _MAX_DEFLATE_RATIO * num_bytes + 4096, MAX_BYTES)


def _read_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    import gzip

    contents: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream:
            bounded: Any = _BoundedStream(stream, _max_inflated(path.stat().st_size))
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


def _archive_size(archive: zipfile.ZipFile) -> int:
    stream = archive.fp
    assert stream is not None
    return stream.seek(0, io.SEEK_END)


def _read_header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    return shape, dtype
