"""Messages arrive whole, or say in time that they do not."""

from __future__ import annotations

import os
import pickle
import struct
import threading
import time
from multiprocessing import Pipe

import numpy as np
import pytest

from refattn.pipes import Stalled, TooLong, receive, send
from refattn.replies import Forged, received

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes are no files here")


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_a_message_is_that_of_a_connection(size: int) -> None:
    ours, theirs = Pipe()
    x = np.arange(size)
    other = threading.Thread(target=lambda: theirs.send(theirs.recv()))  # back it comes
    other.start()
    send(ours, x, soon())
    data = receive(ours, soon(), 9 * size + 1000)
    other.join()
    assert np.array_equal(pickle.loads(data), x)


def test_the_form_of_long_messages_is_read() -> None:
    ours, theirs = Pipe()
    os.write(theirs.fileno(), struct.pack("!iQ", -1, 3) + b"abc")
    assert receive(ours, soon(), 3) == b"abc"


def test_what_stalls_is_left_in_time() -> None:
    ours, theirs = Pipe()
    begun = time.monotonic()
    with pytest.raises(Stalled):
        send(ours, bytes(50_000_000), soon(0.2))  # nobody reads
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"abc")
    with pytest.raises(Stalled):
        receive(ours, soon(0.2), 1000)
    assert time.monotonic() - begun < 20


def test_what_is_too_long_is_not_taken() -> None:
    for head in (struct.pack("!i", 1001), struct.pack("!iQ", -1, 2**60), struct.pack("!i", -2)):
        ours, theirs = Pipe()
        os.write(theirs.fileno(), head)
        with pytest.raises(TooLong, match="where 1000 are enough"):
            receive(ours, soon(), 1000)


def test_the_end_of_the_other_side_is_told() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        receive(ours, soon(), 1000)
    with pytest.raises(OSError):
        send(ours, bytes(50_000_000), soon())
    with pytest.raises(Forged):
        received(b"\0")
