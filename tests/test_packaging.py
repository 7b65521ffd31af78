"""The built package installs and runs outside the checkout, and missing optional dependencies are named."""

import os
import re
import site
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

import bench
from tasks.core import files
from tests.tiny import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PLAIN = {
    "torch", "torchvision", "lightning", "timm", "torchmetrics", "transformers", "optuna",
    "numpy", "scipy", "pydantic", "pyyaml", "rich", "cyclopts", "pyarrow", "duckdb", "distributed", "jinja2",
    "typing-extensions", "cloudpickle", "altair", "vl-convert-python", "pandas", "pillow", "pytest",
}  # fmt: skip


def name(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0]


def test_a_plain_install_has_what_every_command_needs_and_no_more() -> None:
    assert set(map(name, PROJECT["project"]["dependencies"])) == PLAIN


def test_every_extra_is_in_all_and_every_extra_that_is_named_is_there() -> None:
    declared = PROJECT["project"]["optional-dependencies"]
    [every] = declared["all"]
    assert set(re.split(r"[\[\],]", every)[1:-1]) == declared.keys() - {"all"}
    sources = [path.read_text("utf-8") for top in ("bench", "tasks") for path in (ROOT / top).rglob("*.py")]
    named = {extra for text in sources for extra in re.findall(r"not_installed\(['\"]\w+['\"], ['\"](\w+)", text)}
    assert {"hub"} <= named <= declared.keys()
    assert {"tensorboard", "wandb"} <= declared.keys()  # `--logger` names its own extras


def test_the_version_has_one_place() -> None:
    assert bench.__version__ == metadata.version("attention-optimizer-bench") == PROJECT["project"]["version"]
    found = subprocess.run(["git", "grep", "-lF", "__version__ ="], cwd=ROOT, capture_output=True, text=True).stdout
    assert found.split() in ([], ["tests/test_packaging.py"])


def test_a_missing_package_is_installed_by_uv_in_a_clone_and_by_pip_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.not_installed("datasets", "hub").endswith(" is not installed: uv sync --extra hub")
    monkeypatch.setattr(files, "ROOT", tmp_path)
    assert files.not_installed("datasets", "hub").endswith(": pip install 'attention-optimizer-bench[hub]'")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(["uv", "build", "-q", "--out-dir", folder], cwd=ROOT, check=True, timeout=300)
    return folder


@pytest.mark.deep
def test_the_wheel_runs_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    [wheel], [_] = built.glob("*.whl"), built.glob("*.tar.gz")
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, "--no-deps", wheel], check=True)
    ask = "import site; print(site.getsitepackages()[0])"
    packages = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    # It uses the dependencies of this environment, since installing them takes minutes.
    (Path(packages) / "others.pth").write_text("\n".join([*site.getsitepackages(), ""]))
    empty = tmp_path / "empty"
    empty.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BENCH_", "PYTHON"))}

    def run(words: Sequence[str]) -> str:
        answer = subprocess.run(words, cwd=empty, env=kept, capture_output=True, text=True, timeout=300, check=False)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    program = str(tmp_path / "env/bin/bench")
    short = ["--task", "synthetic", "--trainer.max_steps", "20", "--device", "cpu"]
    code = "import bench, tasks, optimizers; print(bench.__file__, tasks.__file__, optimizers.__file__)"
    assert run([str(python), "-c", code]).count(packages) == 3
    assert run([program, "--version"]).strip() == PROJECT["project"]["version"]
    assert "adam" in run([program, "quickstart", "--store", "first"])
    assert "completed" in run([program, "fit", *short, "--opt", "ngd"])
    assert "ngd" in run([program, "check", "ngd", "--only", "builds,resume"])
    assert "note: best opt.lr" in run([program, "sweep", *short, "--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", "2"])
    assert "vasudeva2025/fixed-decoder" in run([program, "list", "experiments"])
    assert "my_opt/README.md" in run([program, "new", "optimizer", "my_opt"])
    assert run([str(python), "-c", "import bench; print(len(bench.load()))"]) == "5\n"
    assert (Path(packages) / "bench/SKILL.md").read_text("utf-8").startswith("---\nname: ")  # for coding agents
    typed = {str(Path(packages) / top / "py.typed") for top in ("bench", "tasks", "optimizers")}
    assert all(Path(path).is_file() for path in typed)
