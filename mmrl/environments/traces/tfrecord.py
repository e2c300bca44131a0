"""Records of TensorFlow's TFRecord files, and the features of the `tf.train.Example` in each.

A record is its length (uint64), a checksum of that, the content, and a checksum of the content, all little-endian. The
content's own checksum is not computed: files compressed with gzip, which are read here, have one for all of it.

An Example is a protocol buffer: Example {1: Features {1: map<text, Feature>}}, and a Feature is one of
{1: bytes}, {2: floats}, {3: integers}, each a message whose field 1 repeats.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from mmrl.errors import DataError

MAX_BYTES = 2**29
"""The number of bytes above which a record is not read."""
_HEAD = struct.Struct("<QI")
_CASTAGNOLI = 0x82F63B78
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def records_in(path: Path) -> Iterator[bytes]:
    """Yield the contents of the records of a TFRecord file with compression GZIP.

    Raises:
        DataError: the file is not one, or is cut off. The message names the file and the record, from 0.
    """
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            while head := file.read(_HEAD.size):
                place = f"{path}, record {number}"
                if len(head) < _HEAD.size:
                    raise DataError(f"{place}: is cut off")
                length, checksum = _HEAD.unpack(head)
                if _masked_crc32c(head[:8]) != checksum:
                    raise DataError(f"{place}: its length is damaged, or the file is no TFRecord")
                if length > MAX_BYTES:
                    raise DataError(f"{place}: has {length} bytes; at most {MAX_BYTES} are read")
                content = file.read(length + 4)
                if len(content) < length + 4:
                    raise DataError(f"{place}: is cut off")
                yield content[:length]
                number += 1
    except (OSError, EOFError, zlib.error) as err:
        raise DataError(f"{path}, record {number}: cannot be read as TFRecord with gzip: {err}") from None


def features_of(content: bytes, place: str) -> dict[str, list[bytes] | list[int]]:
    """Return the features of an Example that are bytes or integers, by name.

    Raises:
        DataError: the content is no Example.
    """
    try:
        found: dict[str, list[bytes] | list[int]] = {}
        for features in _messages(content, 1):
            for entry in _messages(features, 1):
                name = b"".join(_messages(entry, 1)).decode("utf-8")
                for feature in _messages(entry, 2):
                    for texts in _messages(feature, 1):
                        found[name] = list(_messages(texts, 1))
                    for numbers in _messages(feature, 3):
                        found[name] = list(_integers(numbers))
        return found
    except (ValueError, IndexError) as err:
        raise DataError(f"{place}: is no tf.train.Example: {err}") from None


def _messages(content: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the fields of a number that are bytes, texts or messages."""
    for number, value in _fields(content):
        if number == wanted and isinstance(value, bytes):
            yield value


def _integers(content: bytes) -> Iterator[int]:
    """Yield the integers of field 1, packed or one by one."""
    for number, value in _fields(content):
        if number == 1 and isinstance(value, int):
            yield _signed(value)
        elif number == 1:
            assert isinstance(value, bytes)
            place = 0
            while place < len(value):
                each, place = _varint(value, place)
                yield _signed(each)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(content, place)
            yield number, value
            continue
        if kind == _BYTES:
            length, place = _varint(content, place)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > len(content):
            raise ValueError("a field is cut off")
        if kind == _BYTES:
            yield number, content[place : place + length]
        place += length


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise ValueError("an integer has more than ten bytes")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _masked_crc32c(content: bytes) -> int:
    """Return TensorFlow's masked CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CASTAGNOLI if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
