"""Reads translation catalogues (.mo files of GNU gettext), whose messages are a parallel corpus."""

import struct
from pathlib import Path

from jaxpriv import _files

_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
"""Byte order of a catalogue by its first four bytes."""


def read(path: Path) -> list[tuple[str, str]]:
    """Reads the messages of a catalogue and their translations, each pair once.

    A message with plural forms gives its singular with the first translation and its plural with
    the last one. Contexts, the header and untranslated messages are left out.

    Args:
      path: the .mo file.

    Returns:
      Messages with their translations, in the order of the file.

    Raises:
      ValueError: if the file is missing, damaged or not UTF-8.
    """
    raw = _files.read_bytes(path)
    order = _ORDERS.get(raw[:4])
    if order is None:
        raise ValueError(f"Expected a translation catalogue (.mo) at {path}.")
    try:
        _, count, ids_at, texts_at = struct.unpack_from(f"{order}4I", raw, 4)
        entries = [
            [_text(raw, order, table + 8 * i) for table in (ids_at, texts_at)] for i in range(count)
        ]
    except (struct.error, UnicodeDecodeError, ValueError) as e:
        raise ValueError(f"Expected a whole catalogue at {path}: {_files.one_line(e)}.") from None
    pairs = [pair for message, text in entries if message for pair in _forms(message, text)]
    return list(dict.fromkeys(pair for pair in pairs if all(map(str.strip, pair))))


def _text(raw: bytes, order: str, position: int) -> str:
    length, start = struct.unpack_from(f"{order}2I", raw, position)
    if start + length > len(raw):
        raise ValueError(f"{length} bytes at {start} are beyond its end")
    return raw[start : start + length].decode()


def _forms(message: str, text: str) -> list[tuple[str, str]]:
    messages = message.rpartition("\x04")[2].split("\0")
    texts = text.split("\0")
    return list(zip(messages, (texts[0], texts[-1]), strict=False))
