"""S3 objects in memory, read without a copy.

moto copies the whole object for each range that is read of it.
"""

from __future__ import annotations

import io
from typing import Any

from moto.s3.models import FakeKey


def install() -> None:
    key: Any = FakeKey
    key.value = property(_read, _write)


def _read(key: Any) -> bytes:
    # The very bytes that it was made of: a BytesIO copies when it is written to, and this one never
    # is.
    content: bytes = key._value_buffer.getvalue()
    return content


def _write(key: Any, content: bytes) -> None:
    key._value_buffer.close()
    key._value_buffer = io.BytesIO(content)
    key.contentsize = len(content)
