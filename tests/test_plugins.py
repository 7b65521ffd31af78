"""Plug-in optimizers and tasks: files, modules, packages."""

import json
import os
import re
import shlex
import site
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest

from bench.config.run_config import resolve
from bench.train.runner import run
from optimizers import OPTIMIZERS
from optimizers.plugins import PluginError, Registry
from tests.programs import Program
from tests.stored import Store

ROOT = Path(__file__).parent.parent
RUN = ("--task", "synthetic", "--trainer.max_steps", 30, "--device", "cpu")
PLAIN = '''
import torch

class Plain(torch.optim.Optimizer):
    """Gradient descent, once more.

    Args:
        lr: step per unit of the gradient.
    """

    def __init__(self, params, lr: float = 0.1, betas=(0.9, 0.99), nesterov: bool = False, hook=print):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, SIGNATURE):
        BEFORE
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])
        return None
'''


def write(folder: Path, name: str, signature: str = "closure=None", before: str = "closure and closure()") -> str:
    """Write a file with the optimizer `Plain`; returns the value of `--opt`."""
    (folder / name).write_text(PLAIN.replace("SIGNATURE", signature).replace("BEFORE", before))
    return f"{name}:Plain"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that contains nothing of the suite."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("signature", "before"),
    [
        ("closure=None", "closure and closure()"),
        ("", "pass"),
        ("*, loss=None", "assert loss.ndim == 0"),
        ("closure, extra=None", "loss = closure(); closure(); assert loss.ndim == 0"),
    ],
    ids=["closure", "nothing", "loss", "closure twice"],
)
@pytest.mark.parametrize("engine", ["lightning", "lanes"])
@pytest.mark.numeric
def test_a_file_trains_whatever_its_step_takes(
    cli, here: Path, store: Path, signature: str, before: str, engine: str
) -> None:
    opt = write(here, "plain.py", signature, before)
    words = ("sweep", "--opt", f"{opt},sgd", "--opt.lr", 0.5, "--seeds", 2, *RUN, "--engine", engine)
    answer = cli(*words, "--out", here / "swept")
    assert answer.code == 0, answer.err
    results = {(result.config["opt"], result.config["seed"]): result for result in Store(store).runs()}
    assert len(results) == 4
    for seed in (0, 1):
        result_of_file, reference = results[opt, seed], results["sgd", seed]
        assert result_of_file.engine == engine
        assert result_of_file.cost - reference.cost in (0, 1)  # two gradients a step may be one too many
        curve, plain = (Store(store).tables(run.run_id)["curve"]["loss"] for run in (result_of_file, reference))
        assert curve == pytest.approx(plain[: len(curve)], rel=1e-9)
        assert result_of_file.versions["opt_package"].startswith("file ")
        assert "opt_package" not in reference.versions


def test_options_come_from_the_signature(cli, here: Path) -> None:
    opt = write(here, "mine.py")
    shown = cli("show", opt)
    assert shown.code == 0, shown.err
    assert "--opt.lr" in shown.out
    assert "step per unit of the gradient (float, default 0.1)" in " ".join(shown.out.split())
    assert "--opt.betas" in shown.out
    assert "--opt.hook" in shown.out
    wrong = cli("fit", *RUN, "--opt", opt, "--opt.l", 1)
    assert (wrong.code, wrong.err) == (2, "bench: error: unknown option '--opt.l'; did you mean '--opt.lr'?\n")
    kind = cli("fit", *RUN, "--opt", opt, "--opt.nesterov", "perhaps")
    assert kind.code == 2
    assert "--opt.nesterov 'perhaps'" in kind.err


HELPED = """
import torch
from os import path

def late():
    from helpers.sizes import SIZE

    return SIZE

class Helped(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=late())
"""


def test_imports_from_its_folder_belong_to_an_optimizer(here: Path, store: Path) -> None:
    (here / "deep/helpers").mkdir(parents=True)
    (here / "deep/mine.py").write_text(HELPED)
    (here / "deep/helpers/sizes.py").write_text("from constants import SIZE\n")
    (here / "deep/constants.py").write_text("SIZE = 0.5\n")
    settings = {
        "task": "synthetic",
        "opt": "deep/mine.py:Helped",
        "store": store,
        "device": "cpu",
        "trainer.max_steps": 9,
    }

    def trained(**words: object) -> tuple[str, str, float | None]:
        result = run(resolve(settings | words), progress=False)
        return result.run_id, str(result.versions.get("opt_package")), result.final

    first = trained()
    (here / "deep/other.py").write_text("")  # nobody imports it
    assert trained() == first
    assert first[1].startswith("files ")
    (here / "deep/constants.py").write_text("SIZE = 0.10\n")  # longer: of equal size, an old .pyc would count
    second = trained()
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert [first[2], second[2]] == [trained(opt="sgd", **{"opt.lr": lr})[2] for lr in (0.5, 0.1)]
    (here / "deep/constants.py").write_text("SIZE = 0.5\n")
    assert trained() == first


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("import torch\n\nclass Bad(:\n", "bad.py:Bad", "bad.py, line 3: invalid syntax"),
        ("import torch\n1 / 0\n", "bad.py:Bad", "importing bad.py raises ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "bad.py:Bad", "importing bad.py raises SystemExit: 3"),
        ("class Bod: pass\n", "bad.py:Bad", "bad.py has no 'Bad'; did you mean 'Bod'?"),
        ("class Bad: pass\n", "bad.py:Bad", "bad.py:Bad is the class Bad; an optimizer is a class that derives from"),
        ("", "missing.py:Bad", "there is no file missing.py"),
        ("", "no_such_package.sub:Bad", "there is no module 'no_such_package.sub' here"),
        ("", ":Bad", ":Bad: write module:Class or file.py:Class"),
    ],
)
def test_unusable_plug_ins_are_refused_with_the_reason(cli, here: Path, text: str, name: str, message: str) -> None:
    (here / "bad.py").write_text(text)
    answer = cli("fit", *RUN, "--opt", name)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err


def test_a_class_that_asks_for_groups_with_use_muon_gets_them(cli) -> None:
    assert cli("fit", "--task", "synthetic", "--opt", "tests.mutants:AsksForFlags", "--trainer.max_steps", 2).code == 0


KIND = """
from enum import IntEnum
from tests.mutants import AsksForFlags
class Kind(IntEnum):
    PLAIN, NEW = 1, 2
class Inherits(AsksForFlags):
    def __init__(self, params, lr: float = 0.05, kind: int = Kind.PLAIN):
        assert isinstance(kind, int)
        super().__init__(params, lr * kind)
"""


@pytest.mark.parametrize(("given", "lr"), [((), 0.05), (("--opt.kind", "NEW"), 0.1), (("--opt.kind", "2"), 0.1)])
def test_a_default_may_be_a_member_of_an_intenum_and_a_base_class_may_ask_for_groups(
    cli, here: Path, store: Path, given: tuple[str, ...], lr: float
) -> None:
    (here / "kinds.py").write_text(KIND)
    answer = cli("fit", "--task", "synthetic", "--opt", "kinds.py:Inherits", "--trainer.max_steps", 2, *given)
    assert answer.code == 0, answer.err
    (run,) = Store(store).runs()
    assert Store(store).tables(run.run_id)["curve"]["applied_step"][-1] == pytest.approx(lr)


def test_the_output_of_a_plugin_is_not_among_the_results(cli, here: Path, store: Path) -> None:
    opt = write(here, "loud.py", before="closure and closure(); print('in step')")
    (here / "loud.py").write_text("print('on import')\n" + (here / "loud.py").read_text())
    answer = cli("fit", *RUN, "--opt", opt, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["status"] == "completed"


def test_a_plugin_that_asks_to_exit_is_a_failed_run(cli, here: Path, store: Path) -> None:
    opt = write(here, "leaves.py", before="raise SystemExit(7)")
    answer = cli("fit", *RUN, "--opt", opt)
    assert answer.code == 1
    (result,) = Store(store).runs()
    assert result.status == "failed"
    assert re.fullmatch(r"SystemExit: 7 \(.*leaves\.py, line \d+\)", result.reason or "")
    assert f"failed: {result.reason}" in answer.err


def test_an_argument_without_annotation_and_default_takes_numbers_and_text(cli, here: Path, store: Path) -> None:
    opt = write(here, "bare.py")
    text = (here / "bare.py").read_text()
    (here / "bare.py").write_text(text.replace("lr: float = 0.1, betas", "lr, kind, betas"))
    given = ("--opt", opt, "--opt.lr", 0.25, "--opt.kind", "plain")
    assert cli("fit", *RUN, "--opt", opt).err == "bench: error: --opt.lr is required\n"
    answer = cli("fit", *RUN, *given)
    assert answer.code == 0, answer.err
    (result,) = Store(store).runs()
    assert result.config["opt_options"] | {"lr": 0.25, "kind": "plain"} == result.config["opt_options"]
    assert result.chosen == {"opt.lr": 0.25, "opt.kind": "plain", "trainer.max_steps": 30, "trainer.max_epochs": None}
    answer = cli("tune", *RUN, "--opt", opt, "--opt.kind", "plain", "--trials", 1, "--dry-run", "--json")
    assert [[*point] for point in json.loads(answer.out)] == [["opt.lr"]]


def test_a_module_of_this_folder_and_of_torch(cli, here: Path, store: Path) -> None:
    (here / "own_pack").mkdir()
    (here / "own_pack/__init__.py").touch()
    write(here / "own_pack", "own_module.py")
    for opt in ("own_pack.own_module:Plain", "torch.optim:NAdam", "torch.optim:Rprop"):
        answer = cli("fit", *RUN, "--opt", opt, "--json")
        assert answer.code == 0, answer.err
    packages = {result.config["opt"]: result.versions.get("opt_package") for result in Store(store).runs()}
    assert packages["torch.optim:NAdam"] is None  # as for built-in ones, since torch's version is in the record anyway
    assert packages["own_pack.own_module:Plain"].startswith("files ")


def test_second_order_methods_get_gradients_with_a_graph(here: Path, store: Path) -> None:
    (here / "second.py").write_text(
        PLAIN.replace("SIGNATURE", "closure=None").replace(
            "BEFORE",
            "closure()\n        with torch.enable_grad():\n"
            "            ps = [p for g in self.param_groups for p in g['params']]\n"
            "            hv = torch.autograd.grad(sum((p.grad ** 2).sum() for p in ps), ps)\n"
            "        assert any(h.any() for h in hv)",
        )
        + "\nfrom optimizers import OptimizerSpec, Traits\n"
        "SPEC = OptimizerSpec(name='x', target='second.py:Plain', formula='', source='',"
        " traits=Traits(create_graph=True))\n"
    )
    config = {"task": "synthetic", "opt": "second.py:SPEC", "opt.lr": 0.5, "store": store, "device": "cpu"}
    config |= {"trainer.max_steps": 30}
    mine = run(resolve(config), progress=False)
    assert mine.status == "completed", mine.reason
    assert mine.final == run(resolve({**config, "opt": "sgd"}), progress=False).final


@pytest.mark.deep
def test_a_pure_update_of_a_plugin_is_used_in_lanes(cli, here: Path, store: Path) -> None:
    write(here, "pure.py", before="raise AssertionError('the class is not used')")
    with (here / "pure.py").open("a") as file:
        file.write(
            "\ndef update(grads, state, params, loss, hparams):\n"
            "    return [p - hparams['lr'] * g for p, g in zip(params, grads)], state\n"
            "from optimizers import OptimizerSpec\n"
            "SPEC = OptimizerSpec(name='x', target='pure.py:Plain', formula='', source='', update='pure.py:update')\n"
        )
    words = ("--opt", "pure.py:SPEC,sgd", "--opt.lr", "0.1,0.5", "--engine", "lanes", "--out", here / "o")
    answer = cli("sweep", *RUN, *words)
    assert answer.code == 0, answer.err
    finals: dict[str, list[float | None]] = {}
    for result in Store(store).runs():
        finals.setdefault(result.config["opt"], []).append(result.final)
    assert sorted(map(float, finals["pure.py:SPEC"])) == pytest.approx(sorted(map(float, finals["sgd"])), rel=1e-12)


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch):
    """Replace the installed entry points by these (name, value, package)."""

    def announced(*points: tuple[str, str, str]) -> Registry:
        entries = [EntryPoint(name, value, "test.group") for name, value, _ in points]
        for point, (_, _, package) in zip(entries, points, strict=True):
            vars(point)["dist"] = SimpleNamespace(name=package, version="1.2")
        monkeypatch.setattr(
            "optimizers.plugins.entry_points", lambda group: EntryPoints(p for p in entries if p.group == group)
        )
        return Registry("test.group", [OPTIMIZERS["sgd"]], OPTIMIZERS.make)

    return announced


def test_packages_are_listed_without_being_imported(announce, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = announce(("far", "no_such_module_at_all:Far", "far-away"), ("sgd", "my_package:SGD", "mine"))
    assert list(registry) == ["sgd", "far"]
    assert "far" in registry
    assert registry.describe("far") == "far-away 1.2 (no_such_module_at_all:Far)"
    with pytest.raises(PluginError, match="there is no module 'no_such_module_at_all'"):
        registry["far"]
    with pytest.raises(KeyError):
        registry["nothing"]
    assert registry["sgd"] is OPTIMIZERS["sgd"]
    monkeypatch.setattr(OPTIMIZERS, "hidden", registry.hidden)
    assert "mine 1.2 (my_package:SGD) as sgd is not used" in cli("list", "optimizers").err


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the unedited packages of `bench new`; its folder."""
    folder = tmp_path_factory.mktemp("packages")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for kind, name in (("optimizer", "my_opt"), ("task", "my_task")):
        subprocess.run([sys.executable, "-m", "bench", "new", kind, name], cwd=folder, env=environment, check=True)
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, folder / "env"], check=True)
    packages = [folder / "my_opt", folder / "my_task"]
    python = folder / "env/bin/python"
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, "--no-deps", *packages], check=True)
    printed = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    )
    (Path(printed.stdout.strip()) / "suite.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT), ""]))
    return folder


def as_installed(environment: Path, folder: Path) -> None:
    """Let this process use the packages of an environment, in this folder, on one CPU and without settings."""
    for name in [name for name in os.environ if name.startswith("BENCH_") or name == "COLUMNS"]:
        del os.environ[name]
    os.environ["BENCH_REFERENCE"] = ""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.chdir(folder)
    [packages] = environment.glob("lib/*/site-packages")
    site.addsitedir(str(packages))
    sys.executable = str(environment / "bin/python")
    warnings.simplefilter("default")


def bench(installed: Path, *words: object, ok: bool = True, cwd: Path | None = None) -> str:
    """Run `bench` in a process that finds the packages of the environment; returns its output."""
    folder = Path(mkdtemp(dir=installed))
    program = Program(folder / "program", words, as_installed, installed / "env", cwd or installed)
    code, out, err = program.end()
    assert (code == 0) == ok, err
    return out if ok else err


@pytest.mark.parametrize(("kind", "name"), [("optimizer", "my_opt"), ("task", "my_task")])
def test_a_new_package_is_written_whole(cli, here: Path, kind: str, name: str) -> None:
    answer = cli("new", kind, name)
    assert answer.code == 0, answer.err
    files = [f"{name}/__init__.py", f"{name}/{kind}.py", f"tests/test_{name}.py", "pyproject.toml", "README.md"]
    paths = [path for path in (here / name).rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(here / name)) for path in paths) == sorted(files)
    for path in paths:
        assert "{{" not in path.read_text("utf-8")
        if path.suffix == ".py":
            compile(path.read_text("utf-8"), path, "exec")


@pytest.mark.deep
def test_a_new_package_goes_from_its_template_to_the_board(installed: Path) -> None:
    assert "my-opt 0.1.0 (my_opt:SPEC)" in bench(installed, "list", "optimizers")
    assert "my-task 0.1.0 (my_task:SPEC)" in bench(installed, "list", "tasks")
    assert "w <- w - lr * m" in bench(installed, "show", "my_opt")
    result = json.loads(bench(installed, "fit", *RUN, "--opt", "my_opt", "--opt.momentum", 0.5, "--json"))
    assert result["status"] == "completed"
    record = Store(installed / "runs").get(result["run_id"])
    assert record is not None
    assert record.versions["opt_package"] == "my-opt 0.1.0"
    bench(installed, "tune", *RUN, "--opt", "my_opt", "--trials", 3, "--seeds", 1, "--report_seeds", 3, "--workers", 1)
    assert "my_opt: " in bench(installed, "check", "my_opt")
    board = json.loads(bench(installed, "leaderboard", "--json"))
    rows = {row["opt"]: row for table in board[0]["tables"] for row in table["rows"]}
    assert {name: (row["settings"], row["n"], row["conformance"]) for name, row in rows.items()} == {
        "my_opt": ("tuned", 3, "pass"),
    }
    taken = bench(installed, "new", "optimizer", "my_opt", "--out", "again", ok=False)
    assert taken == "bench: error: 'my_opt' is taken by my-opt 0.1.0 (my_opt:SPEC); choose another name\n"


@pytest.mark.deep
def test_the_guides_commands_work_as_they_stand(installed: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/optimizer.md").read_text("utf-8")
    for name, text in re.findall(r"^```python (\S+)\n(.*?)^```", guide, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    commands = "".join(re.findall(r"^```sh run\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)).splitlines()
    said: dict[str, str] = {}
    for command in commands:
        program, *words = shlex.split(command.replace("my_opt", "guides_opt"))  # the other name is taken here
        if program == "uv":  # what the package depends on is there, but not as an installer sees it
            python = installed / "env/bin/python"
            subprocess.run(["uv", *words, "-q", "--no-deps", "--python", python], cwd=tmp_path, check=True)
        else:
            said[" ".join(words)] = bench(installed, *words, cwd=tmp_path)
    assert len(said) == len(commands) - 1 - 1  # uv's, and one board is shown twice
    board = said["leaderboard --task synthetic"]
    assert re.search(r"clipped_momentum.py:ClippedMomentum +tuned .* 8 +pass", board), board
    assert re.search(r"adam +tuned .* 8 +-", board)
    assert "guides-opt 0.1.0" in said["list optimizers"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimizer", "adam"), "'adam' is taken by the suite; choose another name"),
        (("optimizer", "class"), "'class' cannot be the name of a Python package"),
        (("optimizer", "torch"), "'torch' is a Python module, and the package would shadow it"),
        (("optimizer", "x", "--out", "full"), "full exists; choose another folder with --out, or remove it"),
        (("optimizer", "x", "--out", "full/file/x"), "cannot write full/file/x: Not a directory"),
    ],
)
def test_a_new_package_never_overwrites_anything(cli, here: Path, words: tuple[str, ...], message: str) -> None:
    (here / "full").mkdir()
    (here / "full/file").write_text("mine")
    answer = cli("new", *words)
    assert answer.code == 2
    assert message in answer.err
    assert [path.name for path in here.rglob("*")] == ["full", "file"]
