"""BLAS told to leave threads to us: its own, beneath ours, spin while they wait (17 times slower, measured)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread_each"]

_users = 0
_limit = ExitStack()
_lock = threading.Lock()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Matrix products take one thread, in all of the process, as long as anybody is inside."""
    global _users
    with _lock:
        if _users == 0:
            _limit.enter_context(_controller().limit(limits=1, user_api="blas"))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.close()


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
