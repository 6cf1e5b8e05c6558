"""The proofs: each holds, is refuted in every world in which it is false, and says what it must."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_worker import ends

from refattn import cli
from refattn import prove as proving
from refattn.proofs import discover, missing

ROOT = Path(__file__).parent.parent
PROOFS = {path.stem: path for path in sorted((ROOT / "proofs").glob("*.py"))}
WORLDS = [(name, world) for name in PROOFS for world in importlib.import_module(f"proofs.{name}").WORLDS]
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in PROOFS.items()}
NEEDED = {name: [p for p in missing(discover(ROOT / "proofs", [name]))] for name in PROOFS}
PLOTS = find_spec("matplotlib") is not None
DRAWN = os.environ.get("DRAWN")
"""what stands before NAME.png of pictures that `refattn prove` has drawn, which are then not drawn again"""

Ran = tuple[int, str, str]


def script(*arguments: str) -> Ran:
    """Run Python from the root, with one thread for its linear algebra."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], tuple[Ran, Path]]]:
    """The quick run of a proof in a world, and the folder of its files; all that are asked for run side by side."""
    place = tmp_path_factory.mktemp("proofs")
    started: dict[tuple[str, str], Future[Ran]] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:

        def start(name: str, world: str) -> Future[Ran]:
            if (name, world) not in started:
                arguments = ["-m", f"proofs.{name}", "--quick", "--json", str(place / f"{name}-{world}.json")]
                if world == "ours" and PLOTS:
                    arguments += ["--plot", str(place / f"{name}.png")]
                if world != "ours":
                    arguments += ["--world", world, "-x"]  # the fewest samples that refute
                started[name, world] = pool.submit(script, *arguments)
            return started[name, world]

        if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker of xdist knows not which tests are its own
            for item in request.session.items:
                asked = getattr(item, "callspec", None)
                if asked is not None and item.path == request.path and "name" in asked.params:
                    start(asked.params["name"], asked.params.get("world", "ours"))
        yield lambda name, world: (start(name, world).result(), place)


def able(name: str) -> None:
    if NEEDED[name]:
        pytest.skip(f"{name} needs {', '.join(NEEDED[name])}")


@pytest.mark.parametrize("name", PROOFS)
def test_holds(name: str, runs: Callable[[str, str], tuple[Ran, Path]]) -> None:
    able(name)
    (code, out, err), place = runs(name, "ours")
    assert code == 0, out + err
    data = told(out, place / f"{name}-ours.json", name, "ours", "holds")
    assert all(finding["decision"] == "holds" for finding in data["findings"])


def told(out: str, path: Path, name: str, world: str, decision: str) -> dict[str, Any]:
    """What a run has written, of which it has printed the claim and the number of findings."""
    data: dict[str, Any] = json.loads(path.read_text())
    assert set(data) == {"claim", "decision", "world", "seed", "quick", "seconds", "findings"}
    assert (data["decision"], data["world"], data["seed"], data["quick"]) == (decision, world, 0, True)
    assert data["claim"] == SOURCES[name].removeprefix('"""').split("\n")[0]
    assert data["findings"]
    for finding in data["findings"]:
        assert set(finding) == {"what", "got", "expected", "decision", "samples", "note"}
        assert finding["what"] and finding["samples"] >= 0
    assert data["claim"].split(" ")[0] in out and f"{len(data['findings'])} findings" in out
    return data


@pytest.mark.parametrize(("name", "world"), WORLDS)
def test_is_refuted_where_it_is_false(name: str, world: str, runs: Callable[[str, str], tuple[Ran, Path]]) -> None:
    able(name)
    (code, out, err), place = runs(name, world)
    assert code == 1, out + err
    data = told(out, place / f"{name}-{world}.json", name, world, "refuted")
    assert data["findings"][-1]["decision"] == "refuted"
    assert "Traceback" not in err


@pytest.mark.parametrize("name", PROOFS)
def test_draws_its_picture(name: str, runs: Callable[[str, str], tuple[Ran, Path]]) -> None:
    able(name)
    if not PLOTS:
        pytest.skip("no matplotlib")
    if DRAWN:
        err, path = "", Path(f"{DRAWN}{name}.png")
    else:
        (_, _, err), place = runs(name, "ours")
        path = place / f"{name}.png"
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width >= 800 and height >= 500
    assert len(data) > 10_000, "nothing seems to be on it"
    assert "Glyph" not in err, "a character that the font lacks"


@pytest.mark.parametrize("name", PROOFS)
def test_help_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"proofs.{name}")
    with pytest.raises(SystemExit) as end:
        from refattn.montecarlo import main

        main(module.__doc__, module.prove, module.WORLDS, module.picture, ["--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for world, what in module.WORLDS.items():
        assert " ".join(f"{world}: {what}".split()) in out


def test_runs_as_a_script() -> None:
    """By its path, as README says, and not only as a module."""
    code, out, err = script(str(PROOFS["bound_is_sharp"]), "--help")
    assert (code, err) == (0, "") and "exit status" in out


# what a proof must say, and must not do


@pytest.mark.parametrize("name", PROOFS)
def test_docstring(name: str) -> None:
    document = ast.get_docstring(ast.parse(SOURCES[name])) or ""
    claim, rest = document.split("\n\n", 1)
    assert claim.endswith(".") and "\n" not in claim and ". " not in claim, "the first line is the claim, one sentence"
    assert re.search(r"^Source: \S", rest, re.MULTILINE) and re.search(r"^Time: \d", rest, re.MULTILINE)
    assert re.search(r"^(Statistic|Decision|Checked|Setting|Exact)\b", rest, re.MULTILINE)
    assert re.search(r"false[- ]alarm|chance", rest), "how often it errs"
    if "Mean(" in SOURCES[name]:
        assert "power" in rest.lower() and "1e-9" in rest


def functions(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Each function with the nodes of its own body, those of inner functions left out."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
            own, stack = [], list(ast.iter_child_nodes(node))
            while stack:
                inner = stack.pop()
                if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                    own.append(inner)
                    stack += ast.iter_child_nodes(inner)
            yield node, own


DECIDING = {"Finding", "exact", "within", "Mean", "Decision", "whole"}


def deciders_that_know_the_world(source: str) -> list[str]:
    found = []
    for function, nodes in functions(ast.parse(source)):
        world = any(isinstance(n, ast.Attribute) and n.attr == "world" for n in nodes)
        called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        named = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
        if world and (called | named) & DECIDING:
            found.append(getattr(function, "name", "a lambda or the module"))
    return found


@pytest.mark.parametrize("name", PROOFS)
def test_decisions_do_not_know_the_world(name: str) -> None:
    """run.world is asked only in functions that make no finding and decide nothing."""
    assert deciders_that_know_the_world(SOURCES[name]) == []


@pytest.mark.parametrize(
    "body",
    [
        "yield within('x', 1.0, 0, 2 if run.world == 'ours' else 0)",
        "test = Mean(0.0, 0.1, wager)\n    if run.world == 'bad': return",
        "d = Decision.REFUTED if run.world != 'ours' else Decision.HOLDS",
    ],
)
def test_the_check_of_it_has_teeth(body: str) -> None:
    assert deciders_that_know_the_world(f"def prove(run):\n    {body}\n") == ["prove"]
    apart = "def draw(run):\n    return run.world\ndef prove(run):\n    yield exact()\n"
    assert deciders_that_know_the_world(apart) == []


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a proof is a script: no relative imports"
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("name", PROOFS)
def test_imports(name: str) -> None:
    """Never a sibling; at the top nothing but the standard library, NumPy and refattn."""
    tree = ast.parse(SOURCES[name])
    assert not imports(tree) & {"proofs", "tests", *PROOFS}
    at_top = {x for node in tree.body for x in imports(node) if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert at_top <= {"numpy", "refattn"} | sys.stdlib_module_names
    assert "assert" not in {type(node).__name__.lower() for node in ast.walk(tree)}, "python -O would not check it"


# refattn prove

TRUTHFUL = '''"""Two and two make four.

Setting: numbers.
"""
from refattn.montecarlo import Finding, Decision, exact, main

WORLDS = {}


def prove(run):
    yield exact("2 + 2", 2 + 2, 4)
    yield Finding("a | <b>", float("inf"), "[x]", Decision.HOLDS, 7)


def picture(figure, run):
    figure.add_subplot().plot([1, 2, 4])


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
'''


TRIED = '''try:
    import no_such_package
except ImportError:
    pass
'''
ENDLESS = '''import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(600)
'''


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A checkout in the current folder whose proofs are a true one and those that are asked for."""
    folder = tmp_path / "proofs"
    folder.mkdir()
    (folder / "arithmetic.py").write_text(TRUTHFUL)
    (folder / "_shared.py").write_text("raise SystemExit(9)")
    others = {
        "false": TRUTHFUL.replace("2 + 2, 4)", "2 + 2, 5)"),
        "open": TRUTHFUL.replace("Decision.HOLDS", "Decision.UNDECIDED"),
        "crashing": TRUTHFUL.replace('exact("2 + 2", 2 + 2, 4)', "1 / 0"),
        "unpictured": TRUTHFUL.replace("def picture", "def drawing").replace("WORLDS, picture", "WORLDS"),
        "badly_drawn": TRUTHFUL.replace("plot([1, 2, 4])", "plot(1 / 0)"),
        "needy": TRUTHFUL.replace("WORLDS = {}", "import no_such_package\nWORLDS = {}"),
        "trying": TRUTHFUL.replace("WORLDS", TRIED + "WORLDS", 1),
        "endless": TRUTHFUL.replace("WORLDS", ENDLESS + "WORLDS", 1),
        "broken": "def",
    }
    monkeypatch.chdir(tmp_path)

    def make(*names: str) -> Path:
        for name in names:
            (folder / f"{name}.py").write_text(others[name])
        return tmp_path

    return make


@pytest.fixture
def prove(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def command(*arguments: object) -> Ran:
        try:
            code = cli.main(["prove", *map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return command


def test_all_hold(checkout: Callable[..., Path], prove: Callable[..., Ran]) -> None:
    checkout("trying", "unpictured")
    code, out, err = prove("--quick")
    assert (code, err) == (0, "")
    assert "2 + 2: 4, expected 4" in out and "_shared" not in out
    assert "3 of 3 hold, 0 refuted, 0 undecided, 0 failed; seed 0, quick" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("names", "code", "told"),
    [
        (["false"], 1, "2 + 2: 4, expected 5"),
        (["open"], 3, "1 of 2 hold, 0 refuted, 1 undecided"),
        (["open", "false"], 1, "1 refuted, 1 undecided"),
        (["crashing"], 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_exit_codes_of_prove(
    names: list[str], code: int, told: str, checkout: Callable[..., Path], prove: Callable[..., Ran]
) -> None:
    checkout(*names)
    got, out, err = prove()
    assert got == code and told in " ".join(out.split()) and "Traceback" not in out + err


def test_only_and_json(checkout: Callable[..., Path], prove: Callable[..., Ran]) -> None:
    folder = checkout("false", "open")
    code, out, _ = prove("--only", "arith*", "--only", "open", "--seed", 5, "--jobs", 1, "--json", "all.json")
    assert code == 3 and "false" not in out
    data = json.loads((folder / "all.json").read_text())
    assert (data["seed"], data["quick"], data["exit"]) == (5, False, 3)
    assert [(p["name"], p["decision"], p["samples"]) for p in data["proofs"]] == [
        ("arithmetic", "holds", 7), ("open", "undecided", 7),
    ]  # fmt: skip
    assert data["proofs"][0]["claim"] == "Two and two make four."
    assert data["proofs"][0]["findings"][1]["got"] == "inf"


class Page(HTMLParser):
    """The tags that are open, the pictures and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pictures: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures.append(dict(attributes)["src"] or "")
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page(checkout: Callable[..., Path], prove: Callable[..., Ran]) -> None:
    pytest.importorskip("matplotlib")
    folder = checkout("unpictured", "crashing")
    code, _, err = prove("--html", "all.html", "--markdown", "all.md")
    assert (code, err) == (1, "")
    page = Page((folder / "all.html").read_text())
    assert page.open == [] and len(page.pictures) == 1 and page.pictures[0].startswith("data:image/png;base64,")
    assert "Two and two make four." in page.text and "a | <b>" in page.text and "Setting: numbers." in page.text
    assert "ZeroDivisionError" in page.text
    text = (folder / "all.md").read_text()
    assert r"a \| \<b\>" in text and "](all-arithmetic.png)" in text and "all-unpictured" not in text
    assert (folder / "all-arithmetic.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_fails_is_a_failure(checkout: Callable[..., Path], prove: Callable[..., Ran]) -> None:
    pytest.importorskip("matplotlib")
    checkout("badly_drawn")
    assert prove("--only", "badly_drawn")[0] == 0
    code, out, _ = prove("--only", "badly_drawn", "--html", "all.html")
    assert code == 1 and "1 failed" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--proofs", "nowhere"], "nowhere holds no proofs"),
        (["--only", "geometry"], "'geometry' matches no proof; there are arithmetic, broken, needy"),
        (["--only", "needy"], "needy cannot run without no_such_package: python -m pip install no_such_package"),
        (["--only", "broken"], "broken.py is not Python"),
        (["--json", "."], "--json: . cannot be written"),
        (["--html", "no/all.html"], "--html: no/all.html cannot be written"),
        (["--jobs", "-1"], "-1 must be an int >= 0"),
        (["--seed", "-1"], "-1 must be an int >= 0"),
    ],
    ids=" ".join,
)
def test_mistakes_in_the_call_of_prove(
    arguments: list[str], message: str, checkout: Callable[..., Path], prove: Callable[..., Ran]
) -> None:
    checkout("needy", "broken")
    code, out, err = prove(*arguments)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


def test_pictures_without_matplotlib(
    checkout: Callable[..., Path], prove: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout()
    there: Any = proving.importlib.util.find_spec
    monkeypatch.setattr(
        proving.importlib.util, "find_spec", lambda name, *more: None if name == "matplotlib" else there(name, *more)
    )
    code, out, err = prove("--html", "all.html")
    assert (code, out) == (2, "") and "need matplotlib: python -m pip install matplotlib" in err
    assert prove()[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_ends_the_proofs(checkout: Callable[..., Path]) -> None:
    folder = checkout("endless")
    run = subprocess.Popen(
        [sys.executable, "-m", "refattn", "prove", "--only", "endless"], cwd=folder, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        begin = time.monotonic()
        while not (folder / "pid").exists() or not (folder / "pid").read_text():
            assert time.monotonic() - begin < 60 and run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
        assert run.returncode == 130 and "refattn: interrupted" in err and "Traceback" not in err
        assert ends(int((folder / "pid").read_text()))
    finally:
        run.kill()


def test_prove_in_an_empty_place(
    tmp_path: Path, prove: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = prove()
    assert code == 2 and "proofs holds no proofs; run it in a checkout, or pass --proofs DIR" in err
