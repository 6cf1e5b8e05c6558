"""A candidate in its own process: whatever it does is the result of its case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import candidates
import numpy as np
import pytest

from refattn.calling import Answer, Local
from refattn.case import Case
from refattn.inputs import make
from refattn.precision import Conventions, preset
from refattn.worker import CannotLoad, Worker

SECONDS = 1.0
posix = pytest.mark.skipif(os.name != "posix", reason="needs process groups and fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with my_kernel.py in it."""
    path = tmp_path_factory.mktemp("user")
    candidates.install(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    with Worker("my_kernel:deeds", SECONDS) as worker:
        yield worker


def case(deed: str) -> Case:
    return Case(deed, "what the candidate does", B=2, H=3, Lq=2, Lk=4, D=5, Dv=5)


def do(worker: Worker | Local, deed: str) -> Answer:
    problem = make(case(deed))
    plan = worker.plan(problem.case)
    assert plan.precision == preset("float32")
    worker.start(problem)
    return worker.result()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def ends(pid: int, seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def test_description_is_plain_data(folder: Path) -> None:
    with Worker("my_kernel:honest") as worker:
        about = worker.description
    assert (about.name, about.version, about.arrays) == ("honest", "1.2", "numpy")
    assert about.conventions == Conventions() and about.outputs == set(candidates.ALL)
    assert "my_kernel" not in sys.modules, "the candidate is imported in the child only"


def test_answer_arrives_unchanged(worker: Worker) -> None:
    answer = do(worker, "nothing")
    problem = make(case("nothing"))
    expected = candidates.solve(problem.case, problem.fresh())
    assert answer.kind == "answer" and answer.findings == () and answer.seconds > 0
    for name in ("out", "lse"):
        np.testing.assert_array_equal(answer.outputs[name], expected[name], strict=True)


def test_local_gives_the_same(worker: Worker) -> None:
    here = do(Local(candidates.deeds), "nothing")
    there = do(worker, "nothing")
    for name in ("out", "lse"):
        np.testing.assert_array_equal(here.outputs[name], there.outputs[name], strict=True)
    assert do(Local(candidates.deeds), "in-place").findings == ("k was modified in place",)


def test_child_starts_clean_in_the_current_folder(worker: Worker) -> None:
    assert "cwd on path True, loaded []" in do(worker, "where").text


@pytest.mark.parametrize(
    ("deed", "kind", "text"),
    [
        ("exit0", "crash", "exit code 0"),
        ("exit3", "crash", "exit code 3"),
        pytest.param("segfault", "crash", "SIGSEGV", marks=posix),
        ("sleep", "timeout", "no answer within 1 s"),
        ("sys-exit", "error", "SystemExit: 0"),
        ("base", "error", "Base: out of the ordinary"),
        ("memory", "error", "MemoryError"),
        ("raise", "error", "LinAlgError: Singular matrix"),
        ("unsupported", "unsupported", "D=8 is too small"),
    ],
)
def test_no_answer(worker: Worker, deed: str, kind: str, text: str) -> None:
    answer = do(worker, deed)
    assert answer.kind == kind and text in answer.text and not answer.outputs
    assert do(worker, "nothing").kind == "answer", "the next case goes on"


@pytest.mark.parametrize("deed", ["segfault", "sleep", "raise"])
@posix
def test_says_where_and_shows_no_frame_of_ours(worker: Worker, deed: str) -> None:
    text = do(worker, deed).text
    assert "my_kernel.py" in text
    assert not any(name in text for name in ("worker.py", "calling.py", "implementation.py", "importlib"))


@posix
def test_deadline_ends_what_the_candidate_started(worker: Worker, folder: Path) -> None:
    assert do(worker, "spawn-and-sleep").kind == "timeout"
    assert ends(int((folder / "grandchild.pid").read_text()))


@posix
def test_a_forked_process_that_holds_the_pipe_hides_no_crash(worker: Worker) -> None:
    answer = do(worker, "fork-and-die")
    assert answer.kind == "crash" and "exit code 5" in answer.text  # and no timeout


@pytest.mark.parametrize(
    ("deed", "finding"),
    [
        ("in-place", "k was modified in place"),
        ("alias", "out shares memory with the input v"),
        ("none", "returned None, which must be out, (out, lse), or a mapping of named arrays"),
        ("list", "out is a list, which must be an array"),
        ("objects", "out.dtype=object must be one of float64"),
    ],
)
def test_findings(worker: Worker, deed: str, finding: str) -> None:
    if deed == "none":  # the door makes a mapping of what a function returns
        answer = Local(_Returns(None))
        answer.start(make(case("nothing")))
        found = answer.result()
    else:
        found = do(worker, deed)
    assert found.kind == "answer"
    assert any(f.startswith(finding) for f in found.findings), found.findings


class _Returns:
    name, version, arrays, conventions, outputs = "returns", "", "numpy", Conventions(), frozenset({"out"})

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def supports(self, case: Case) -> str | None:
        return None

    def precision(self, case: Case) -> object:
        return "usual"

    def __call__(self, case: Case, given: object) -> object:
        return self.answer


def test_plan(worker: Worker) -> None:
    assert worker.plan(case("refused")).reason == "on principle"
    failure = worker.plan(case("supports-raises")).failure
    assert failure is not None and failure.kind == "error" and "KeyError: 'lost'" in failure.text
    failure = worker.plan(case("supports-exits")).failure
    assert failure is not None and failure.kind == "crash" and "exit code 9" in failure.text
    assert do(worker, "nothing").kind == "answer"
    failure = Local(_Returns(None)).plan(case("nothing")).failure
    assert failure is not None and "must be a refattn.precision.Precision" in failure.text


def test_printing_goes_to_stderr(worker: Worker, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    with Worker("my_kernel:deeds") as own:  # started while capfd holds the descriptors
        assert do(own, "chatter").kind == "answer"
    out, err = capfd.readouterr()
    assert out == "" and "chatter" in err and "from below" in err


def test_an_answer_nobody_waited_for_is_dropped(worker: Worker) -> None:
    worker.start(make(case("sleep")))
    assert do(worker, "nothing").kind == "answer"


@pytest.mark.parametrize(
    ("spec", "source", "text"),
    [
        ("nowhere_to_be_found:f", None, "No module named 'nowhere_to_be_found'"),
        ("my_kernel:nothing_there", None, "my_kernel has no nothing_there"),
        ("my_kernel:ALL", None, "must be an implementation or a callable"),
        ("syntax:f", "def f(:", "SyntaxError"),
        ("fails:f", "1 / 0", "ZeroDivisionError"),
        ("dies:f", "import os; os._exit(4)", "exit code 4 while it was imported"),
        ("leaves:f", "import sys; sys.exit(0)", "SystemExit"),
        ("liar:f", "from candidates_base import f", "conventions=3 must be"),
    ],
)
def test_cannot_load(folder: Path, spec: str, source: str | None, text: str) -> None:
    (folder / "candidates_base.py").write_text(
        "from my_kernel import honest\nimport dataclasses\nf = dataclasses.replace(honest, conventions=3)\n"
    )
    if source is not None:
        (folder / f"{spec.split(':')[0]}.py").write_text(source)
    with pytest.raises(CannotLoad) as error:
        Worker(spec)
    assert text in str(error.value)
    assert "worker.py" not in str(error.value)


def test_fails_to_load_again(folder: Path) -> None:
    (folder / "once.py").write_text(
        "import os, pathlib\nif pathlib.Path('once.mark').exists(): raise RuntimeError('the device is gone')\n"
        "pathlib.Path('once.mark').write_text('')\nfrom my_kernel import deeds\n"
    )
    with Worker("once:deeds", SECONDS) as worker:
        assert do(worker, "exit3").kind == "crash"
        failure = worker.plan(case("nothing")).failure
        assert failure is not None and failure.kind == "error" and "the device is gone" in failure.text


@posix
def test_child_ends_with_the_parent(folder: Path) -> None:
    script = (
        "import time\nfrom refattn.case import Case\n"
        "from refattn.inputs import make\nfrom refattn.worker import Worker\n"
        "if __name__ == '__main__':\n    w = Worker('my_kernel:deeds')\n    w.start(make(Case('sleep', 'x')))\n"
        "    print(w._process.pid, w._log, flush=True)\n    time.sleep(60)\n"
    )
    (folder / "parent.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "parent.py"], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child, log = parent.stdout.readline().decode().split()
        assert alive(int(child)) and Path(log).exists()
        parent.kill()
    assert ends(int(child)) and not Path(log).exists()


def test_torch_arrays(folder: Path) -> None:
    pytest.importorskip("torch")
    want = frozenset({"out", "lse", "dq", "dk"})
    problem = make(Case("grad", "x", B=2, H=2, Lq=3, Lk=4, dtype="bfloat16", want=want))
    expected = candidates.solve(problem.case, problem.fresh())
    with Worker("my_kernel:honest_torch") as worker:
        assert worker.description.arrays == "torch"
        worker.start(problem)
        answer = worker.result()
    assert answer.kind == "answer" and answer.findings == (), answer
    for name, x in expected.items():
        np.testing.assert_array_equal(answer.outputs[name], x, strict=True)


HOARDS = """
import subprocess, sys, time
from my_kernel import solve
from refattn.implementation import implementation

kept = []

@implementation(name="hoards", outputs=("out", "lse"))
def hoards(case, given):
    if case.id == "itself":
        kept.append(bytearray(900_000_000))
        time.sleep(60)
    if case.id == "its-child":
        subprocess.run([sys.executable, "-c", "import time; x = bytearray(900_000_000); time.sleep(60)"])
    return solve(case, given)
"""


@posix
def test_memory_beyond_the_limit_fails_the_case_alone(folder: Path) -> None:
    pytest.importorskip("psutil", reason="psutil is not installed")
    (folder / "hoards.py").write_text(HOARDS)
    with Worker("hoards:hoards", 50, memory=0.6) as worker:
        for deed in ("itself", "its-child"):
            begin = time.monotonic()
            worker.start(make(case(deed)))
            time.sleep(0.2)  # a truth that takes its time: the limit does not wait for it
            answer = worker.result()
            assert answer.kind == "crash" and time.monotonic() - begin < 30
            used, _, rest = answer.text.partition(" GB, ")
            assert rest.startswith("the limit is 0.6 GB") and 0.6 <= float(used.removeprefix("used ")) < 1.2
            assert do(worker, "nothing").kind == "answer", "the next case gets a new process"
    assert "killed by" not in answer.text


@posix
def test_memory_while_it_is_imported(folder: Path) -> None:
    pytest.importorskip("psutil", reason="psutil is not installed")
    (folder / "heavy.py").write_text("import time\nx = bytearray(900_000_000)\ntime.sleep(60)\n")
    with pytest.raises(CannotLoad, match=r"heavy:f.: used .* GB, the limit is 0.5 GB while it was imported"):
        Worker("heavy:f", memory=0.5)


def test_memory_needs_psutil(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refattn.resident.importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotLoad, match="a memory limit needs psutil: python -m pip install psutil"):
        Worker("my_kernel:deeds", memory=1.0)


def test_a_worker_at_rest_comes_back(worker: Worker) -> None:
    assert do(worker, "nothing").kind == "answer"
    worker.rest()
    assert do(worker, "nothing").kind == "answer"


def test_limits_are_refused_unless_positive() -> None:
    with pytest.raises(ValueError, match="timeout=0 must be > 0"):
        Worker("refattn", 0)
    with pytest.raises(ValueError, match="memory=0 must be > 0 GB; pass None for no limit"):
        Worker("refattn", memory=0)
