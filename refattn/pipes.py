"""Messages through a pipe whose other end may stall: each within a time, and of a size, that is given.

`Connection.recv` waits for ever for the rest of a message that was begun, and takes as many bytes as it says;
`Connection.send` waits for ever for a reader.  The form of a message is that of `Connection`, which the other end has:
its length in 4 bytes, big-endian, or -1 and the length in 8; then the pickle.  Where pipes are no files (Windows) it
is `Connection` that is used.
"""

from __future__ import annotations

import os
import selectors
import struct
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = ["Stalled", "TooLong", "receive", "send"]

_SHORT = 0x7FFFFFFF
_AT_ONCE = 1 << 20


class Stalled(Exception):
    """The other end does not go on."""


class TooLong(Exception):
    """A message of more bytes than there may be."""


def send(pipe: Connection[Any, Any], message: Any, until: float) -> None:
    """Send it, or raise `Stalled` at `until` of `time.monotonic`; OSError where the other end is closed."""
    data = memoryview(ForkingPickler.dumps(message)).cast("B")
    if os.name != "posix":
        pipe.send_bytes(data)
        return
    head = struct.pack("!i", len(data)) if len(data) <= _SHORT else struct.pack("!iQ", -1, len(data))
    os.set_blocking(pipe.fileno(), False)
    for left in (memoryview(head), data):
        while left:
            _ready(pipe, selectors.EVENT_WRITE, until)
            try:
                left = left[os.write(pipe.fileno(), left[:_AT_ONCE]) :]
            except BlockingIOError:
                continue


def receive(pipe: Connection[Any, Any], until: float, most: int) -> bytes:
    """The bytes of the next message, or `Stalled`, or `TooLong`; EOFError or OSError where the other end is closed."""
    if os.name != "posix":
        return pipe.recv_bytes(most)
    (length,) = struct.unpack("!i", _exactly(pipe, 4, until))
    if length == -1:
        (length,) = struct.unpack("!Q", _exactly(pipe, 8, until))
    if not 0 <= length <= most:
        raise TooLong(f"{length} bytes, where {most} are enough")
    return bytes(_exactly(pipe, length, until))


def _exactly(pipe: Connection[Any, Any], count: int, until: float) -> bytearray:
    data = bytearray()
    while len(data) < count:
        _ready(pipe, selectors.EVENT_READ, until)
        try:
            part = os.read(pipe.fileno(), min(count - len(data), _AT_ONCE))
        except BlockingIOError:
            continue
        if not part:
            raise EOFError
        data += part
    return data


def _ready(pipe: Connection[Any, Any], event: int, until: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise Stalled
