"""`refattn.flash` among threads and processes: the same bits for any number of them, forks, refused memory, Ctrl-C."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

from flash_calls import ROOT, SHARED, bits, child, digest, environment, run_here

from refattn import flash

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def test_calls_from_eight_threads_at_once() -> None:
    expected = [bits(x) for x in SHARED]
    barrier = threading.Barrier(8)

    def call(n: int) -> bool:
        barrier.wait()
        return all(bits(SHARED[(n + i) % 3]) == expected[(n + i) % 3] for i in range(6))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    """Those of 1, 2 and 5 threads, of a process that has only one, and those that numba chose here."""
    expected = digest(SHARED)
    found = run_here(
        """
        import threading
        for n in (1, 2, 5):
            numba.set_num_threads(n)
            print(digest(SHARED))
        print(threading.active_count() > 5)
        """,
        NUMBA_NUM_THREADS="5",
    )
    assert found.split() == [expected] * 3 + ["True"]
    alone = run_here("print(numba.get_num_threads(), digest(SHARED))", NUMBA_NUM_THREADS="1")
    assert alone.split() == ["1", expected]


def test_spawned_processes() -> None:
    x = SHARED[0]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        calls = [pool.submit(flash.attention, x["q"], x["k"], x["v"], mask=x["mask"]) for _ in range(2)]
        assert len({call.result().out.tobytes() for call in calls}) == 1
        assert calls[0].result().out.tobytes() == flash.attention(x["q"], x["k"], x["v"], mask=x["mask"]).out.tobytes()


@linux
def test_fork_after_a_call_and_during_one() -> None:
    found = run_here(
        """
        import os, signal, threading
        before = digest(SHARED)

        def forked():
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)  # ends a child that waits for threads it has not
                os._exit(0 if digest(SHARED) == before else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        forked()
        busy = threading.Thread(target=lambda: [digest(SHARED) for _ in range(3)])
        busy.start()
        forked()
        busy.join()
        print(digest(SHARED) == before)
        """
    )
    assert found.split() == ["0", "0", "True"]


@linux
def test_memory_that_is_refused() -> None:
    """As the limit rises a call fails with a MemoryError, again and again, and then it is right."""
    found = run_here(
        """
        import resource
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        before = digest(SHARED)
        q, k = np.ones((1, 1, 1 << 18, 64), np.float32), np.ones((1, 1, 8, 64), np.float32)
        mask = Dilated(1, 2, "top_left") | Dilated(3, 1, "top_left")
        calls = (
            lambda: flash.attention(q, k, k), lambda: flash.attention(q, k, k, mask=mask),
            lambda: flash.attention_grad(q, k, k, q),
        )

        def used():
            return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

        for call in calls:
            refused, start = 0, used()
            for room in range(0, 800 << 20, 8 << 20):
                resource.setrlimit(resource.RLIMIT_AS, (start + room, most))
                try:
                    call()
                    break
                except MemoryError:
                    refused += 1
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            print(refused > 2, room < 700 << 20)
        print(digest(SHARED) == before)
        """
    )
    assert found.split() == ["True"] * 7


@linux
def test_ctrl_c_ends_a_call_of_many_seconds() -> None:
    code = """
        import signal
        signal.alarm(120)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before = digest(SHARED)
        q = np.ones((1, 64, 1 << 14, 16), np.float32)
        for call in (lambda: flash.attention(q, q, q), lambda: flash.attention_grad(q, q, q, q)):
            print("begun", flush=True)
            try:
                call()
                print("ended", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        print(digest(SHARED) == before, flush=True)
        """
    two = environment(NUMBA_NUM_THREADS="2")
    with subprocess.Popen(child(code), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=two) as run:
        assert run.stdout is not None
        try:
            for _ in range(2):
                assert run.stdout.readline() == "begun\n"
                time.sleep(0.7)
                run.send_signal(signal.SIGINT)
                assert run.stdout.readline() == "interrupted\n"
            assert run.stdout.readline() == "True\n"
        finally:
            run.kill()


def test_without_compilation_it_is_refused_by_name() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import refattn.flash"], capture_output=True, text=True, cwd=ROOT,
        env=environment(NUMBA_DISABLE_JIT="1"), timeout=60,
    )  # fmt: skip
    assert "ImportError: NUMBA_DISABLE_JIT=1: refattn.flash exists compiled only; unset it" in found.stderr
