"""The Python API: it returns what the commands print, and accepts optimizer classes."""

import json
import linecache
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import altair as alt
import numpy as np
import pytest
import torch

import bench
import bench.train.runner
from bench.api.source import name_of
from optimizers import OPTIMIZERS
from tests.stored import WILD, begin, record
from tests.tiny import ROOT

SHORT: dict[str, Any] = {"trainer": {"max_steps": 5}, "device": "cpu", "progress": False}
WORDS = ("--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", 5, "--device", "cpu")


class Signs(torch.optim.Optimizer):
    """w <- w - lr * sign(g).

    Args:
        lr: step of every coordinate, in [0, inf).
    """

    interrupts = False

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        self.taken = 0

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        self.taken += 1
        if self.interrupts and self.taken == 3:
            signal.raise_signal(signal.SIGINT)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(p.grad.sign() * group["lr"])
        return loss


CELLS = {
    "imports": "import math\nimport torch\nfrom torch import Tensor, sign\nimport torch.nn.functional as F\n",
    "helpers": """
LEAST, BETAS = -math.inf, (0.9, 0.999)
unused = torch.zeros(3)


def signs(gradient: Tensor) -> Tensor:
    unused = sign(F.relu(gradient)) - sign(F.relu(-gradient))
    return unused


class Base(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.1, least: float = LEAST, betas: tuple[float, float] = BETAS):
        super().__init__(params, {"lr": lr})
""",
    "class": """
class Own(Base):
    \"\"\"Signs.

    Args:
        lr: step, in [0, inf).
    \"\"\"

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(signs(p.grad) * group["lr"])
        return loss
""",
}


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs cells as IPython does: in `__main__`, with their sources known to linecache."""
    session = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", session)
    cells: list[str] = []

    def run(text: str) -> dict[str, Any]:
        name = f"<cell {len(cells)}>"
        cells.append(name)
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        exec(compile(text, name, "exec"), vars(session))
        return vars(session)

    yield run
    for name in cells:
        del linecache.cache[name]


# -- import -----------------------------------------------------------------------------------------------------------


def test_import_is_light_and_names_are_loaded_when_used() -> None:
    code = (
        "import sys, bench\n"
        "heavy = {'torch', 'lightning', 'numpy', 'pydantic', 'typing'} - before & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'fit', 'load', '__version__'} <= set(dir(bench))\n"
        "bench.fit, bench.Run, bench.Answer, bench.UserError\n"
        "assert not {'torch', 'lightning', 'altair', 'pandas'} & set(sys.modules)\n"
        "from bench import *\n"
        "assert compare is bench.compare and callable(compare)\n"
    )
    code = f"import sys\nbefore = set(sys.modules)\n{code}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


# -- fit --------------------------------------------------------------------------------------------------------------


def test_fit_gives_the_run_of_the_command_and_trains_it_once(
    cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.fit("synthetic", "ngd", lr=np.float64(0.1), seed=np.int64(3), **SHORT)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
    answer = json.loads(cli("fit", *WORDS, "--opt.lr", 0.1, "--seed", 3, "--json").out)
    assert {name: answer[name] for name in ("run_id", "status", "final", "steps")} == {
        "run_id": run.run_id,
        "status": run.status,
        "final": run.final,
        "steps": run.steps,
    }
    assert answer["metric"].replace("/", " ") == run.metric == "train loss"
    assert (run.task, run.opt, run.seed, run.settings["opt.lr"]) == ("synthetic", "ngd", 3, 0.1)
    monkeypatch.setattr(bench.train.runner, "run", None)
    again = bench.fit("synthetic", "ngd", lr=0.1, seed=3, **SHORT)
    assert again.result == run.result
    assert again.run_id in repr(again)
    assert str(again) in again._repr_html_().replace("&#x27;", "'")


@pytest.mark.parametrize("engine", ["lanes", "lightning"])
def test_fit_with_seeds_gives_the_runs_of_the_command(cli, monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    runs = bench.fit("synthetic", "ngd", lr=0.1, seeds=3, engine=engine, **SHORT)
    answer = json.loads(cli("fit", *WORDS, "--opt.lr", 0.1, "--seeds", 3, "--engine", engine, "--json").out)
    assert isinstance(runs, bench.Runs)
    assert [(run.seed, run.settings["data_seed"]) for run in runs] == [(0, 0), (1, 1), (2, 2)]
    assert [run["run_id"] for run in answer] == [run.run_id for run in runs]
    monkeypatch.setattr("bench.execute.execute.execute", None)
    again = bench.fit("synthetic", "ngd", lr=0.1, seeds=[2, 0], **SHORT)
    assert [run.run_id for run in again] == [runs[2].run_id, runs[0].run_id]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 2, "seed": 1}, "seed is for one run; remove it or --seeds"),
        ({"seeds": 2, "rerun": True}, "rerun is for one run; remove it or --seeds"),
        ({"width": 2}, "width is for several runs; give --seeds too, or leave it out"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 2, "engine": "lane"}, "unknown engine 'lane'; did you mean 'lanes'"),
    ],
)
def test_fit_refuses_options_of_one_run_with_seeds_and_of_several_without(given: dict[str, Any], message: str) -> None:
    with pytest.raises(bench.UserError, match=message):
        bench.fit("synthetic", "ngd", **given, **SHORT)


def test_a_run_has_its_tables_as_frames() -> None:
    run = bench.fit("synthetic", "ngd", lr=0.1, **SHORT)
    assert run.curve["step"].tolist() == [1, 2, 3, 4, 5]
    assert {"loss", "grad_norm", "raw_step", "applied_step"} <= {*run.curve}
    runs = bench.load()
    assert (runs.evaluations()["step"].max(), runs.evaluations()["loss"].iloc[-1]) == (5, pytest.approx(run.final))
    assert "alignment" in {*runs.measurements()}


def test_settings_have_all_forms() -> None:
    run = bench.fit(
        "synthetic",
        "adam",
        betas=(0.5, 0.9),
        task_options={"T": 4},
        settings={"trainer.max_steps": 2, "opt.lr": 0.5},
        lr=0.1,
        device="cpu",
        progress=False,
    )
    found = {name: run.settings[name] for name in ("opt.betas", "opt.lr", "task.T", "trainer.max_steps")}
    assert found == {"opt.betas": [0.5, 0.9], "opt.lr": 0.5, "task.T": 4, "trainer.max_steps": 2}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bench.tune("synthetic", "ngd", trials="x"), "--trials x: it must be a whole number"),
        (lambda: bench.tune("synthetic", "ngd", width=0), "--width 0: it must be at least 1"),
        (lambda: bench.tune("synthetic", "ngd", sampler=["grid"]), "unknown sampler"),
        (lambda: bench.sweep("synthetic", "ngd", workers=0), "--workers 0: write how many (--workers 2), or auto"),
        (lambda: bench.fit("synthetic", "ngd", lr=[1, 2]), "--opt.lr 1,2: bench fit trains one run; `bench sweep`"),
        (lambda: bench.fit("synthetic", 5), "5 is no optimizer or task: pass a name"),
        (lambda: bench.fit("synthetic", "ngd", trainer=[("max_steps", 5)]), "--trainer [('max_steps', 5)]: it must be"),
        (lambda: bench.fit("synthetic", "ngd", settings={5: 5}), "--settings {5: 5}: it must be text"),
        (lambda: bench.compare("synthetic", "ngd", dry_run=None), "--dry_run None: it must be true or false"),
        (lambda: bench.compare("synthetic", "ngd", against=[3]), "--against [3]: it must be text"),
        (lambda: bench.load(5), "--store 5: it must be a list or text"),
        (lambda: bench.leaderboard(bord="quality"), "bench.leaderboard: got an unexpected keyword argument 'bord'"),
        (lambda: bench.leaderboard(board=[]), "--board '': it is empty"),
        (lambda: bench.leaderboard(settings="bst"), "unknown settings 'bst'; did you mean 'best'?"),
        (lambda: bench.plot([]), "unknown chart '[]'"),
    ],
)
def test_an_argument_of_another_type_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(bench.UserError) as error:
        call()
    assert str(error.value).startswith(message)


def test_an_interrupt_saves_the_state_and_the_same_call_goes_on(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    monkeypatch.setattr(Signs, "interrupts", True)
    handler = signal.getsignal(signal.SIGINT)
    spec = "tests.test_api:Signs"
    with pytest.raises(KeyboardInterrupt, match="stopped and saved; the same call continues"):
        bench.fit("synthetic", spec, trainer={"max_steps": 40, "val_every": 5}, device="cpu", progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    [run] = bench.load(store)
    assert run.status == "killed"
    assert 0 < run.steps < 40
    monkeypatch.setattr(Signs, "interrupts", False)
    found = bench.fit("synthetic", spec, trainer={"max_steps": 40, "val_every": 5}, device="cpu", progress=False)
    assert (found.run_id, found.status, found.steps) == (run.run_id, "completed", 40)


# -- classes ----------------------------------------------------------------------------------------------------------


def test_a_class_is_named_by_its_module_or_file(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of("ngd") == "ngd"
    assert name_of(Signs) == "tests.test_api:Signs"
    assert name_of(torch.optim.Adam) == "torch.optim.adam:Adam"
    assert bench.fit("synthetic", Signs, lr=0.1, **SHORT).opt == "tests.test_api:Signs"
    (tmp_path / "own_signs.py").write_text("".join(CELLS.values()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import own_signs  # type: ignore[import-not-found]

    assert name_of(own_signs.Own) == "own_signs.py:Own"
    assert name_of(OPTIMIZERS["own_signs.py:Own"].cls) == "own_signs.py:Own"
    monkeypatch.chdir("/")
    assert name_of(own_signs.Own) == f"{tmp_path.resolve().relative_to('/')}/own_signs.py:Own"
    del sys.modules["own_signs"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("signs(p.grad)", "2 * signs(p.grad)"),
        ("return unused", "return 2 * unused"),
        ("lr: float = 0.1", "lr: float = 0.2"),
        ("(0.9, 0.999)", "(0.9, 0.99)"),
    ],
    ids=["class", "helper", "base", "constant"],
)
def test_the_source_of_a_class_of_a_notebook_is_part_of_its_runs_ids(notebook, old: str, new: str) -> None:
    def run(cells: list[str]) -> bench.Run:
        for cell in cells:
            names = notebook(cell)
        return bench.fit("synthetic", names["Own"], lr=0.1, **SHORT)

    cells = [*CELLS.values()]
    first = run(cells)
    assert (first.opt, first.result.versions["opt_package"].split()[0]) == ("Own", "source")
    assert run(cells).run_id == first.run_id
    assert run([cell.replace(old, new) for cell in cells]).run_id != first.run_id
    names = bench.leaderboard(settings="all").table["opt"]
    assert {name.partition(" ")[0] for name in names} == {"Own"}


@pytest.mark.parametrize("cell", ["exec('class Own(Base):\\n    def step(self): pass')", "Own = 3"])
def test_a_class_without_a_source_is_refused_with_the_way_out(notebook, store: Path, cell: str) -> None:
    for text in [CELLS["imports"], CELLS["helpers"], cell]:
        names = notebook(text)
    with pytest.raises(bench.UserError, match=r"'file\.py:"):
        bench.fit("synthetic", names["Own"], **SHORT)
    assert not store.exists()


# -- several runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> bench.Sweep:
    store = tmp_path_factory.mktemp("swept")
    return bench.sweep(
        "synthetic",
        ["ngd", "sngd"],
        lr=[0.1, 1.0],
        seeds=[4, 5],
        engine="lightning",
        store=store,
        settings={"opt.sngd.max_step": 3.0},
        **SHORT,
    )


def test_a_sweep_is_that_of_the_command(swept: bench.Sweep, cli) -> None:
    words = [
        "--task",
        "synthetic",
        "--opt",
        "ngd,sngd",
        "--opt.lr",
        "0.1,1",
        "--opt.sngd.max_step",
        "3",
        "--seeds",
        "4,5",
    ]
    more = ("--seeds", "4,5", "--trainer.max_steps", 5, "--device", "cpu", "--dry-run", "--json")
    assert [run.run_id for run in swept.runs] == [*json.loads(cli("sweep", *words, *more).out)]
    assert swept.best.keys() == {"ngd", "sngd"}
    assert all(best["opt.lr"] in (0.1, 1.0) for best in swept.best.values())
    assert swept.table["table"].to_list() == ["ngd", "ngd", "sngd", "sngd"]
    assert "against opt.lr" in str(swept)
    assert "<table" in swept._repr_html_()
    assert isinstance(swept.figure(), alt.TopLevelMixin)


def test_runs_are_a_sequence_and_a_frame(swept: bench.Sweep) -> None:
    runs = bench.load(swept.runs[0].store)
    assert len(runs) == 8
    assert {run.run_id for run in runs} == {run.run_id for run in swept.runs}
    assert isinstance(runs[1:3], bench.Runs)
    few = runs[:2]
    table = runs.runs()
    assert table["opt.lr"].to_list() == [run.settings["opt.lr"] for run in runs]
    assert table["final"].to_list() == [run.final for run in runs]
    assert table["opt.max_step"].isna().sum() == 4
    assert few[0].run_id in str(few)
    assert few[0].run_id in few._repr_html_()


def test_no_runs_are_a_frame_too(tmp_path: Path) -> None:
    runs = bench.load(tmp_path)
    assert (len(runs), len(runs.runs()), runs.damaged) == (0, 0, ())
    assert runs.runs()["final"].dtype == "float64"
    with pytest.raises(bench.UserError, match="there is no store"):
        bench.load(tmp_path / "nowhere")


def test_damaged_runs_are_said_not_raised(store: Path) -> None:
    begin(store, record("synthetic-ngd-1")).end([record("synthetic-ngd-1")])
    (store / "synthetic-ngd-2" / "done").mkdir(parents=True)
    (store / "synthetic-ngd-2" / "done" / "runs.jsonl").write_text("{}\n")
    runs = bench.load(store)
    assert [run.run_id for run in runs] == ["synthetic-ngd-1"]
    assert len(runs.damaged) == 1
    assert "synthetic-ngd-2" in runs.damaged[0]


def test_seeds_are_a_number_of_them_or_a_list() -> None:
    for seeds, same in ((3, [0, 1, 2]), ([7], [7]), (range(2, 4), [2, 3]), (np.array([1, 0]), [1, 0])):
        runs = bench.sweep("synthetic", "ngd", lr=[0.1], seeds=seeds, dry_run=True, **SHORT).data.values()
        assert [settings["seed"] for settings in runs] == same
    for wrong in (0, [], "x", len, [1.5], [-1]):
        with pytest.raises(bench.UserError, match="--seeds"):
            bench.sweep("synthetic", "ngd", lr=0.1, seeds=wrong, **SHORT)


# -- boards -----------------------------------------------------------------------------------------------------------


def test_a_board_is_that_of_the_command(swept: bench.Sweep, cli, tmp_path: Path) -> None:
    store = swept.runs[0].store
    table = bench.leaderboard(board="quality", store=store, opt="sngd", only={"opt.lr": 1}, reference="ngd")
    [document] = json.loads(
        cli("leaderboard", "--store", store, "--opt", "sngd", "--only", "opt.lr=1", "--reference", "ngd", "--json").out
    )  # fmt: skip
    assert table.as_json() == [document]
    assert len(table.table) == len(document["tables"][0]["rows"])
    table.write(tmp_path / "board.md")
    assert (tmp_path / "board.md").read_text().startswith(f"## {document['title']}")
    assert isinstance(bench.plot("curves", y="grad_norm", settings="all", store=store), alt.TopLevelMixin)
    for call, message in ((bench.leaderboard, "unknown board 'qality'"), (bench.plot, "unknown chart 'qality'")):
        with pytest.raises(bench.UserError, match=message):
            call("qality", store=store)


def test_names_of_others_do_no_harm_in_a_notebook(store: Path) -> None:
    run = record("synthetic-ngd-1", task=WILD, chosen={"opt.name": WILD})
    begin(store, run).end([run])
    found = bench.load(store)
    for html in (found._repr_html_(), found[0]._repr_html_(), bench.leaderboard(store=store)._repr_html_()):
        assert "<script" not in html
        assert "alert(1)" in html


# -- with worker processes --------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_script_passes_its_own_class_without_being_run_twice(tmp_path: Path) -> None:
    body = (
        "import bench\n"
        + "".join(CELLS.values())
        + (
            "print('once')\n"
            "found = bench.sweep('synthetic', Own, lr=[0.01, 0.1], seeds=4, workers=2, engine='lightning',\n"
            "                    trainer={'max_steps': 5}, device='cpu')\n"
            "print(len(found.runs), {run.status for run in found.runs})\n"
        )
    )
    (tmp_path / "script.py").write_text(body)
    answer = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "once\n8 {'completed'}\n"


@pytest.mark.deep
def test_type_checkers_see_what_functions_return(tmp_path: Path) -> None:
    code = (
        "import bench\n"
        "run = bench.fit('mnist', 'sngd', lr=0.1, trainer={'max_epochs': 2}, seed=0)\n"
        "reveal_type(run)\nreveal_type(bench.load()[0].final)\nreveal_type(bench.leaderboard().code)\n"
        "reveal_type(bench.fit('mnist', 'sngd', seeds=[3, 5]).damaged)\n"
        "bench.fit('mnist', 'sngd', seed='zero')\n"
    )
    (tmp_path / "code.py").write_text(code)
    program = Path(sys.executable).with_name("pyright")
    answer = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, "code.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    messages = [entry["message"] for entry in json.loads(answer.stdout)["generalDiagnostics"]]
    assert messages[:2] == ['Type of "run" is "Run"', 'Type of "bench.load()[0].final" is "float | None"']
    assert messages[3].endswith('is "tuple[str, ...]"')
    assert len(messages) == 5
    assert messages[4].startswith('Argument of type "Literal[\'zero\']" cannot be assigned to parameter "seed"')


# -- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_code_of_readme_and_guide_runs_as_it_stands(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/python.md").read_text("utf-8")
    readme = re.findall(r"^```python api\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(readme) == 1
    blocks = readme + re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (tmp_path / "guide.py").write_text("\n".join(blocks))
    kept = {name: value for name, value in os.environ.items() if name != "BENCH_STORE"}
    answer = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "guide.py"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "guide.py",
        "grad_norm.png",
        "board.md",
        "curves.pdf",
    }
    assert "| Signs " in (tmp_path / "board.md").read_text()


@pytest.mark.deep
def test_the_notebook_runs_and_shows_tables_and_pictures(tmp_path: Path, store: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs/quickstart.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = [{kind for out in cell.get("outputs", ()) for kind in out.get("data", ())} for cell in notebook.cells]
    assert sum("text/html" in of_cell for of_cell in kinds) == 7
    streams = [out for cell in notebook.cells for out in cell.get("outputs", ()) if out["output_type"] == "stream"]
    assert streams == []


NOTEBOOK = """
import bench, torch
class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())
bench.sweep("synthetic", Signs, lr=0.1, seeds=2, workers=2, trainer={"max_steps": 5}, device="cpu")
bench.leaderboard()
"""


def test_a_notebook_goes_from_a_class_to_its_row_in_twelve_lines(tmp_path: Path, store: Path) -> None:
    import nbformat.v4
    from nbclient import NotebookClient

    lines = NOTEBOOK.strip().splitlines()
    assert len(lines) <= 12
    cells = [nbformat.v4.new_code_cell("\n".join(part)) for part in (lines[:-2], lines[-2:-1], lines[-1:])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "Signs" in str([out.get("data", {}).get("text/html") for out in notebook.cells[-1]["outputs"]])
    assert {run.opt for run in bench.load(store)} == {"Signs"}
