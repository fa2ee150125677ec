"""TFRecord files and tf.train.Example messages without TensorFlow.

Importing TensorFlow takes seconds and hundreds of MiB in each of many processes, and the tools in
this folder need only two small formats:

* A record is its length (8 bytes, little-endian), a CRC of the length, the data and a CRC of the
  data: https://www.tensorflow.org/tutorials/load_data/tfrecord
* An Example is a protocol buffer that maps names to lists of bytes, integers or floats:
  https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Union

from google_crc32c import value as crc32c
from shards import DataError

Values = Sequence[Union[bytes, int, float]]

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
LONGEST_RECORD = 1 << 31  # bytes, the limit of protocol buffers

# Field numbers of feature.proto, and the wire types of protocol buffers.
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


class RecordError(DataError):
    """A file that is not a complete TFRecord file, or a record that is not an Example."""


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC of TFRecord files: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append a record to an open TFRecord file."""
    length = LENGTH.pack(len(data))
    file.write(length + CRC.pack(masked_crc32c(length)))
    file.write(data)
    file.write(CRC.pack(masked_crc32c(data)))


def read_records(path: Path, damaged: Callable[[str], None] | None = None) -> Iterator[bytes]:
    """Yield the records of a file. Raise RecordError if it is cut short or a CRC is wrong.

    `damaged` gets the message for a record whose data is damaged, and the next one is read.
    """
    with path.open("rb") as file:
        while header := file.read(LENGTH.size + CRC.size):
            where = f"{path}, byte {file.tell() - len(header)}"
            if len(header) < LENGTH.size + CRC.size:
                raise RecordError(f"{where}: the file ends within a record's length")
            (length,), (crc,) = LENGTH.unpack(header[:8]), CRC.unpack(header[8:])
            if crc != masked_crc32c(header[:8]) or length > LONGEST_RECORD:
                raise RecordError(f"{where}: no record begins here (its length is damaged)")
            data, crc_bytes = file.read(length), file.read(CRC.size)
            if len(data) < length or len(crc_bytes) < CRC.size:
                raise RecordError(f"{where}: the file ends within this record")
            if CRC.unpack(crc_bytes)[0] == masked_crc32c(data):
                yield data
                continue
            why = f"{where}: this record's data is damaged"
            if not damaged:
                raise RecordError(why)
            damaged(why)


def count_records(path: Path) -> int:
    """Return the number of records of a file, reading only their lengths.

    Raises RecordError if the file is cut short.
    """
    size, at, count = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while at < size:
            header = file.read(LENGTH.size)
            at += LENGTH.size + 2 * CRC.size + (LENGTH.unpack(header)[0] if len(header) == 8 else 0)
            if at > size or len(header) < LENGTH.size:
                raise RecordError(f"{path}: the file ends within its record {count}")
            file.seek(at)
            count += 1
    return count


def encode_example(features: dict[str, Values | bytes | int | float]) -> bytes:
    """Return the serialized Example of named values. A single value needs no list."""
    entries: list[bytes] = []
    for name, values in sorted(features.items()):
        single = isinstance(values, (bytes, int, float))
        feature = encode_feature([values] if single else values)  # type: ignore[arg-type,list-item]
        entries += delimited(1, [*delimited(1, [name.encode()]), *delimited(2, feature)])
    return b"".join(delimited(1, entries))


def encode_feature(values: Values) -> list[bytes]:
    """Return the parts of a Feature message. The type of the first value decides about its kind."""
    if not values:
        return []
    if isinstance(values[0], bytes):
        each = [part for value in values for part in delimited(1, [value])]  # type: ignore[list-item]
        return delimited(BYTES_LIST, each)
    if isinstance(values[0], int):
        packed = [varint(int(value) & (1 << 64) - 1) for value in values]
        return delimited(INT64_LIST, delimited(1, packed))
    return delimited(FLOAT_LIST, delimited(1, [struct.pack(f"<{len(values)}f", *values)]))


def decode_example(data: bytes) -> dict[str, list[bytes] | list[int] | list[float]]:
    """Return the named values of an Example. Raise RecordError if `data` is not an Example."""
    try:
        features: dict[str, list[bytes] | list[int] | list[float]] = {}
        for _, feature_map in fields(data):
            for _, entry in fields(feature_map):
                pair = dict(fields(entry))
                features[pair[1].decode()] = decode_feature(pair.get(2, b""))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise RecordError(f"a record is no Example ({error})") from None
    return features


def decode_feature(data: bytes) -> list[bytes] | list[int] | list[float]:
    """Return the values of a Feature message."""
    values: list = []
    for kind, content in fields(data):
        for _, value in fields(content):
            if kind == BYTES_LIST:
                values.append(value)
            elif kind == FLOAT_LIST:  # packed, or one number in each field
                values.extend(struct.unpack(f"<{len(value) // 4}f", value))
            elif isinstance(value, int):
                values.append(signed(value))
            else:
                values.extend(signed(number) for number in varints(value))
    return values


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field of a message. A varint is yielded as an integer.

    Raises ValueError or IndexError for a damaged message.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, value  # type: ignore[misc]
            continue
        if wire == DELIMITED:
            length, at = read_varint(data, at)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(data):
            raise ValueError("a field reaches past the end")
        yield number, data[at : at + length]
        at += length


def delimited(number: int, parts: list[bytes]) -> list[bytes]:
    """Return the parts of a field with the content `parts`.

    The caller joins all parts once at the end, since images are large.
    """
    length = sum(map(len, parts))
    return [varint(number << 3 | DELIMITED) + varint(length), *parts]


def varint(value: int) -> bytes:
    """Return a non-negative integer in the varint coding of protocol buffers."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at index `at`, and the index after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def varints(data: bytes) -> Iterator[int]:
    """Yield the varints of a packed field."""
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        yield value


def signed(value: int) -> int:
    """Return the 64-bit two's complement number that `value` stands for."""
    return value - (1 << 64) if value >> 63 else value
