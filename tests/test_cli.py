"""The command line: its output, its errors, and what works without torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bench.cli.commands import COMMANDS, options_of
from bench.config.options import optimizer_options, task_options
from bench.config.run_config import resolve
from bench.papers.experiments import experiments
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.stored import Store, add_run

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
RESULT_KEYS = ["run_id", "task", "opt", "status", "metric", "final", "best", "steps", "wall_s", "store"]
TINY_VIT = (
    "--task.patch_size", "14", "--task.depth", "1", "--task.num_heads", "2", "--task.embed_dim", "8",
    "--task.mlp_width", "8", "--trainer.batch_size", "20", "--device", "cpu",
)  # fmt: skip


def strict_json(text: str):
    def refuse(token: str):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def fails(cli, *words: object, code: int = 2) -> str:
    """The one line that the command fails with."""
    answer = cli(*words)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("bench: error: ")
    assert answer.err.count("\n") == 1
    return answer.err


# -- without torch --------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("words", "code"), [("show deora2024/fig2", 0), ("list experiments", 0), ("reproduce fig2", 2)]
)
def test_experiments_are_described_without_torch_or_altair(words, code):
    program = (
        "import sys\nfrom bench.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'lightning', 'altair', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    program = "from bench.cli import main; main(['fit', '--help'])"
    done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


# -- help and lists -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_show_tells_an_optimizers_formula_paper_options_and_search_space(cli, name):
    out, spec = cli("show", name).out, OPTIMIZERS[name]
    said = " ".join(out.split())
    assert " ".join(spec.formula.split()) in said
    assert " ".join(spec.source.split()) in said
    options, search = out.split("search space:")
    assert all(f"--opt.{option}" in options.split() for option in optimizer_options(spec))
    for option, axis in spec.search.items():
        said = f"one of {', '.join(map(str, axis))}" if isinstance(axis, tuple) else f"in [{axis.low:g}, {axis.high:g}]"
        assert re.search(rf"--opt\.{option}  .*{re.escape(said)}", search)


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("name", TASKS)
def test_show_tells_a_tasks_metric_budget_and_options(cli, name):
    out, spec = cli("show", name).out, TASKS[name]
    said = " ".join(out.split())
    assert spec.title in said
    assert f"metric {spec.metric} mode {spec.mode} scale {spec.scale}" in said
    assert {*re.findall(r"--task\.(\w+)", out)} >= task_options(spec).keys()


def test_show_defines_a_tasks_measurements(cli):
    dm1, joint = (" ".join(cli("show", name).out.split()) for name in ("mha_dm1", "synthetic_joint"))
    assert "train_error, test_error share of sequences on the wrong side of 0" in dm1
    assert "norm_W ||W||_F" in joint  # inherited


def test_show_prints_the_file_of_an_experiment(cli):
    name = "vasudeva2025/fixed-decoder"
    first, *lines = cli("show", name).out.splitlines()
    assert first == f"# run it: bench reproduce {name}"
    assert yaml.safe_load("\n".join(lines)) == yaml.safe_load(experiments()[name].read_text())


def test_the_greatest_seed_can_be_trained_and_is_shown_to_the_last_digit(cli):
    assert cli(*FIT, "--seed", 2**63 - 1).code == 0
    assert cli("sql", "select seed, data_seed from runs").out.split()[2:] == [str(2**63 - 1)] * 2


def test_a_stored_run_is_returned_without_importing_torch(cli, store):
    cli(*FIT)
    code = (
        f"import sys; from bench.cli import dispatch; dispatch({[*FIT, '--store', str(store)]!r});"
        " assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "already stored; --rerun trains again" in done.stderr
    assert done.stdout.startswith("synthetic sngd: completed")
    assert " with lr 0.01 (default), stored in " in done.stdout


def test_options_are_few():
    assert sum(len(options_of(name)[:-1]) for name in COMMANDS) <= 150  # without --json, which all commands have


# -- notation of settings -------------------------------------------------------------------------------------------


def resolved(cli, *words: str) -> dict:
    answer = cli("fit", *words, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    return strict_json(answer.out)


@pytest.mark.parametrize(
    ("words", "group", "name", "value"),
    [
        ("--opt sngd --opt.lr 0.1", "opt", "lr", 0.1),
        ("--opt sngd --opt.lr=0.1", "opt", "lr", 0.1),
        ("--opt=sngd --opt.max_step inf", "opt", "max_step", "inf"),
        ("--opt sps --opt.f_star -0.5", "opt", "f_star", -0.5),
        ("--opt sps --opt.f_star=-1e-3", "opt", "f_star", -0.001),
        ("--opt adam --opt.betas 0.8,0.9", "opt", "betas", [0.8, 0.9]),
        ("--opt sgd --task.flip", "task", "flip", True),
        ("--opt sgd --task.flip --task.crop 2", "task", "flip", True),
        ("--opt sgd --task.flip false", "task", "flip", False),
        ("--opt sgd --task.n_train none", "task", "n_train", None),
        ("--opt sgd --opt.lr 1 --opt.lr 2", "opt", "lr", 2.0),
    ],
)
def test_settings_on_the_command_line(cli, words, group, name, value):
    assert resolved(cli, "--task", "mnist", *words.split())[f"{group}_options"][name] == value


# -- dry run --------------------------------------------------------------------------------------------------------


def test_dry_run_prints_the_configuration_and_writes_nothing(cli, tmp_path, store):
    answer = cli("fit", "--task", "mnist", "--opt", "sps", "--data", tmp_path / "nowhere", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    shown = yaml.safe_load(answer.out)
    assert shown["task"]["name"] == "mnist"
    assert shown["opt"]["name"] == "sps"
    assert shown["opt"]["c"] == 2.154
    assert shown["trainer"]["max_epochs"] == 5
    assert shown["device"] != "auto"
    assert not store.exists()


@pytest.mark.parametrize("opt", OPTIMIZERS)
@pytest.mark.parametrize("task", TASKS)
def test_a_dry_run_prints_a_config_of_the_same_run(cli, tmp_path, task, opt):
    words = ("--task", task, "--opt", opt, "--seed", "3", "--trainer.max_steps", "7", "--opt.lr", "1e-3")
    file = tmp_path / "run.yaml"
    file.write_text(cli("fit", *words, "--dry-run").out)
    again = resolved(cli, "--config", str(file))
    assert again == resolved(cli, *words)
    assert f"# run_id: {again['run_id']}\n" in file.read_text()


@pytest.mark.parametrize(("words", "order"), [("--seed 3", None), ("--seed 3 --data_seed 4", 4)])
def test_with_several_seeds_the_order_follows_them_unless_the_file_gives_it(cli, tmp_path, words, order):
    def ids(*words: object) -> list[str]:
        return list(json.loads(cli("fit", *words, "--seeds", "0,1,5", "--dry-run", "--json").out))

    task, file = ("--task", "synthetic", "--opt", "ngd"), tmp_path / "run.yaml"
    file.write_text(cli("fit", *task, *words.split(), "--dry-run").out)
    assert ids("--config", file) == ids(*task, *([] if order is None else ["--data_seed", order]))
    file.write_text("task: synthetic\nopt: ngd\nseed: 3\ndata_seed: 3\n")
    assert ids("--config", file) == ids(*task, "--data_seed", 3) != ids(*task)


# -- results --------------------------------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(cli, store):
    answer = cli(*FIT, "--json")
    assert answer.code == 0
    result = strict_json(answer.out)
    assert list(result) == RESULT_KEYS
    assert answer.out.count("\n") == 1
    assert [result[name] for name in RESULT_KEYS[1:5]] == ["synthetic", "sngd", "completed", "train/loss"]
    assert (result["steps"], result["store"]) == (20, str(store))
    assert 0 < result["final"] < 1
    assert (store / result["run_id"] / "done/runs.jsonl").is_file()


def test_a_file_that_an_option_names_counts_by_its_content(tmp_path):
    def run_id(**words: object) -> str:
        return resolve({"task": "lm", "opt": "adam", **{f"task.{k}": str(v) for k, v in words.items()}}).run_id

    text, model = tmp_path / "own.txt", tmp_path / "model"
    model.mkdir()
    ids = [run_id(), run_id(corpus=text)]
    for content in ("a", "b"):
        text.write_text(content)
        (model / "model.safetensors").write_text(content)
        ids += [run_id(corpus=text), resolve({"task": "sst2", "opt": "adam", "task.model": str(model)}).run_id]
    assert len(set(ids)) == 6
    text.write_text("a")
    assert run_id(corpus=text) == ids[2]


@pytest.fixture
def trainings(monkeypatch):
    """The configurations that were actually trained."""
    import bench.train.runner

    seen, make = [], bench.train.runner.make_trainer
    monkeypatch.setattr(
        bench.train.runner, "make_trainer", lambda config, *rest: (seen.append(config), make(config, *rest))[1]
    )
    return seen


def test_the_same_run_is_trained_once(cli, store, trainings):
    first = cli(*FIT, "--json").out
    (record,) = store.glob("*/done/runs.jsonl")
    written = record.stat().st_mtime_ns
    assert cli(*FIT, "--json").out == first
    assert cli(*FIT, "--opt.lr", "1e-2", "--trainer.micro_batch_size", "5", "--json").out == first
    assert len(trainings) == 1
    assert record.stat().st_mtime_ns == written


def test_rerun_trains_again(cli, store, trainings):
    first, second = (strict_json(cli(*FIT, "--json", *more).out) for more in ([], ["--rerun"]))
    assert len(trainings) == 2
    assert first | {"wall_s": 0} == second | {"wall_s": 0}
    assert len(list(store.iterdir())) == 1


def test_stored_results_need_no_data(cli, fake_mnist):
    words = ("fit", "--task", "mnist", "--opt", "adam", "--trainer.max_steps", "3", *TINY_VIT, "--json")
    first = cli(*words)
    assert first.code == 0, first.err
    shutil.rmtree(fake_mnist)
    assert cli(*words).out == first.out


def test_places_come_from_flags_or_the_environment(cli, tmp_path, monkeypatch, store):
    assert strict_json(cli(*FIT, "--store", tmp_path / "other", "--json").out)["store"] == str(tmp_path / "other")
    assert not store.exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCH_STORE")
    assert strict_json(cli(*FIT, "--json").out)["store"] == "runs"
    assert (tmp_path / "runs").is_dir()


# -- divergence -----------------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_divergence_is_a_result(cli, store, fake_mnist):
    words = ("fit", "--task", "mnist", "--opt", "sgd", "--opt.lr", "1e6", *TINY_VIT, "--trainer.max_steps", "60")
    answer = cli(*words, "--json")
    assert answer.code == 0
    result = strict_json(answer.out)
    assert (result["status"], result["final"]) == ("diverged", None)
    record = strict_json((store / result["run_id"] / "done/runs.jsonl").read_text())
    assert record["status"] == "diverged"
    assert "final" not in record["metrics"]
    assert record["steps"] == result["steps"] < 60
    assert "at step" in record["reason"] or "by step" in record["reason"]
    again = cli(*words)
    assert again.code == 0
    assert again.out.startswith("mnist sgd: diverged")


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fot", "unknown command 'fot'; did you mean 'fit'?"),
        ("xyzzy", "unknown command 'xyzzy'; known: quickstart, fit, "),
        ("--halp", "unknown option '--halp'; did you mean '--help'?"),
        ("list", "bench list needs KIND: tasks, optimizers, experiments, checks, runs, studies; see `bench list -h`"),
        ("list plans", "unknown kind 'plans'; known: tasks, optimizers, experiments, checks, runs, studies"),
        ("list run", "unknown kind 'run'; did you mean 'runs'?"),
        ("show sngdd", "did you mean 'sngd'?"),
        ("show fixed-decodr", "did you mean 'vasudeva2025/fixed-decoder'?"),
        ("show deora204/fig2", "did you mean 'deora2024/fig2'?"),
        ("show xyzzy", "unknown task, optimizer, experiment or run 'xyzzy'; see `bench list tasks|"),
        ("fit", "--task is missing; see `bench list tasks`"),
        ("fit --task synthetic", "--opt is missing; see `bench list optimizers`"),
        ("fit --task synthetc --opt ngd", "unknown task 'synthetc'; did you mean 'synthetic'?"),
        ("fit --task lm --opt muon --opt.rest", "unknown --opt.rest 'True'; known: gd, "),
        ("fit --task synthetic --opt sngdd", "unknown optimizer 'sngdd'; did you mean 'sngd'?"),
        ("fit --task synthetic --opt", "--opt needs a value"),
        ("fit --task --opt sngd", "--task needs a value"),
        ("fit --config", "--config needs a value"),
    ],
)
def test_a_wrong_request(cli, words, message):
    assert message in fails(cli, *words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--opt.lrr 1", "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ("--lr 1", "unknown option '--lr'; did you mean '--opt.lr'?"),
        ("--trainer.precision 64-true", "unknown option '--trainer.precision'; did you mean '--precision'?"),
        ("--sead 1", "unknown option '--sead'; did you mean '--seed'?"),
        ("--seed x", "--seed 'x': it takes a whole number"),
        (
            "--seed -1",
            "--seed '-1': it must be greater than or equal to 0; it takes a whole number (an integer from 0",
        ),
        (
            "--seed 9223372036854775808",
            "less than or equal to 9223372036854775807; it takes a whole number (an integer",
        ),
        ("--opt.lr fast", "--opt.lr 'fast': it takes a number"),
        ("--trainer.max_steps 20x", "--trainer.max_steps '20x': it takes a whole number or none"),
        ("--task.n 2.5", "--task.n '2.5': it takes a whole number"),
        ("--device=tpu", "--device 'tpu': it takes cpu or cuda or mps or auto"),
        ("--opt.lr -1", "--opt.lr=-1.0 is out of range: it must be in [0, inf)"),
        ("--opt.lr nan", "--opt.lr 'nan': it must be a number"),
        ("--trainer.max_steps 1" + 400 * "0", "it must be less than or equal to 9223372036854775807; it takes"),
        ("--trainer.max_steps 0", "--trainer.max_steps '0': it must be greater than or equal to 1"),
        ("--trainer.max_epochs inf", "--trainer.max_epochs 'inf': it must be a finite number"),
        ("--trainer.batch_size 0", "--trainer.batch_size '0': it must be greater than or equal to 1; it takes a whole"),
        ("--trainer.batch_size 21", "--trainer.batch_size 21 is more than the 20 training samples"),
        ("--trainer.devices 50", "50 devices"),
        ("--trainer.strategy magic", "--trainer.strategy 'magic': it takes auto or ddp or fsdp"),
        ("--opt.lr --json", "--opt.lr needs a value"),
        ("--seed --json", "--seed needs a value"),
        ("opt.lr=1", "unexpected word 'opt.lr=1'; settings are written --name value"),
        ("--opt.lr 1 2", "unexpected word '2'"),
    ],
)
def test_a_wrong_setting(cli, store, words, message):
    assert message in fails(cli, *FIT, *words.split())
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--task.depth 0", "--task.depth=0 is out of range"),
        ("--task.num_heads 3", "--task.num_heads=3 does not divide embed_dim=8"),
        ("--task.patch_size 5", "--task.patch_size=5 does not divide the image of 28 x 28 pixels"),
        ("--task.dropout 1", "--task.dropout=1.0 is out of range: it must be in [0, 1)"),
        ("--task.n_train 61", "--task.n_train=61 is out of range: it must be in [1, 60]"),
        ("--task.crop -1", "--task.crop=-1 is out of range"),
        ("--trainer.batch_size 61", "--trainer.batch_size 61 is more than the 60 training samples"),
    ],
)
def test_a_wrong_setting_of_an_image_task(cli, fake_mnist, words, message):
    assert message in fails(cli, "fit", "--task", "mnist", "--opt", "adam", *TINY_VIT, *words.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"opt: [1\nb: 2", "is not valid YAML at line 2, column 2"),
        (b"a: b: c", "is not valid YAML at line 1"),
        (b"\xff\xfe\x00", "is not valid YAML: 'utf-8' codec can't decode byte 0xff"),
        (b"- task: mnist", "holds list; it must hold settings such as `task: mnist`"),
        (b"", "holds NoneType; it must hold settings such as `task: mnist`"),
        (b"opt: {lrr: 1}", "did you mean '--opt.lr'?"),
        (b"opt: {lr: fast}", "--opt.lr 'fast': it takes a number"),
        (b"trainer: 5", "unknown option '--trainer'; "),
        (b"seed: null", "--seed None: it takes a whole number"),
        (b"!!python/object/apply:os.system ['true']", "is not valid YAML"),
        (b"opt: {lr: yes}", "--opt.lr needs a value: it takes a number"),
        (b"seed: no", "--seed False: it takes a whole number"),
        (b"opt: {lr: 1, momentum: 0.5, lr: 2}", "at line 1, column 29: the key 'lr' is given twice"),
        (b"opt: {lr: 1}\nopt.lr: 2", "run.yaml: opt.lr is given twice, nested and dotted; give it once"),
        (b"a: 2001-99-99", "is not valid YAML: month must be in 1..12"),
        (b"store: ''", "--store (or BENCH_STORE) '': it must name a folder"),
    ],
)
def test_a_wrong_config_file(cli, tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    # Flags override the file, so they leave out the settings that are wrong in the file.
    assert message in fails(cli, *FIT[:5], "--config", file)


def test_a_run_has_one_optimizer(cli, tmp_path):
    (tmp_path / "run.yaml").write_text("task: synthetic\nopt: [sgd, adam]\n")
    error = fails(cli, "fit", "--config", tmp_path / "run.yaml")
    assert "--opt ['sgd', 'adam']: a run takes one name; `bench sweep` takes several optimizers" in error


def test_a_config_file_that_is_none(cli, tmp_path):
    assert f"there is no file {tmp_path}/run.yaml" in fails(cli, *FIT, "--config", tmp_path / "run.yaml")
    assert f"cannot read {tmp_path}: Is a directory" in fails(cli, *FIT, "--config", tmp_path)


EMPTY = ": it must name a folder or file; leave it out for ./"


@pytest.mark.parametrize(
    "words", ["fit --task synthetic --opt ngd", "tune", "leaderboard", "list runs", "show x", "doctor"]
)
def test_an_empty_store_is_not_the_folder_that_one_is_in(cli, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    assert f"--store (or BENCH_STORE) ''{EMPTY}runs" in fails(cli, *words.split(), "--store=")
    monkeypatch.setenv("BENCH_STORE", " ")
    assert f"--store (or BENCH_STORE) ' '{EMPTY}runs" in fails(cli, *words.split())
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written(cli, tmp_path):
    (tmp_path / "file").write_text("")
    error = fails(cli, *FIT, "--store", tmp_path / "file" / "below")
    assert f"cannot write to the store {tmp_path / 'file' / 'below'}" in error
    assert "choose another with --store DIR" in error


def test_a_truncated_data_file_is_named(cli, fake_mnist):
    damaged = fake_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    error = fails(cli, "fit", "--task", "mnist", "--opt", "adam", *TINY_VIT)
    assert f"damaged data file {damaged} (Compressed file ended" in error
    assert "delete it and copy or download it again" in error


def test_missing_data_are_named_when_they_cannot_be_downloaded(cli, fake_mnist, monkeypatch):
    (fake_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()

    def urlopen(url, **kwargs):
        raise OSError("no network\nand more lines")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    answer = cli("fit", "--task", "mnist", "--opt", "adam", *TINY_VIT, "--json")
    assert (answer.code, answer.out) == (2, "")
    line = answer.err.splitlines()[-1]
    assert line.startswith("bench: error: missing data: t10k-labels-idx1-ubyte.gz expected in ")
    assert f"{fake_mnist}/MNIST/raw" in line
    assert "--data DIR or BENCH_DATA" in line
    assert "Traceback" not in answer.err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a device that is always full")
def test_a_full_disk_behind_standard_output_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "bench", "list", "tasks"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == "bench: error: the disk is full; free some space, then repeat the command\n"


@pytest.mark.parametrize("command", ["fit", "sweep"])
def test_memory_that_is_short_is_one_line(cli, store, command) -> None:
    words = ["--task", "synthetic", "--opt", "ngd", "--task.n", 10**15, "--trainer.max_steps", 5, "--device", "cpu"]
    answer = cli(command, *words, *(["--opt.lr", "1,2", "--seeds", 1] if command == "sweep" else []))
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("bench: error: not enough memory; make the task or the batch smaller")
    assert "8000000000000000 bytes" in answer.err
    assert "Traceback" not in answer.err
    assert list(Store(store).runs()) == []


def test_a_library_that_fails_while_an_interrupt_comes_through_it_is_an_interrupt(cli, monkeypatch):
    def fail(words):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise AssertionError("the transaction is still active")  # noqa: B904 - as libraries do

    monkeypatch.setattr("bench.cli.dispatch", fail)
    answer = cli("list", "tasks")
    assert (answer.code, answer.err) == (130, "bench: interrupted\n")
    assert cli("sweep", "--task", "synthetic").err == "bench: interrupted; the same command continues\n"


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        ("fit --task synthetic --opt gd --task.n 99999999999999999999", {}, "it must be a number below 2^63"),
        ("fit --task synthetic --opt gd --task.sigma 1e300", {}, "--task.sigma=1e+300 is out of range"),
        ("fit --task synthetic --opt gd --task.gap 1e308", {}, "it must be in [0, 1e+100]"),
        ("fit --task synthetic --opt gd", {"RANK": "abc"}, "the environment has RANK=abc, which is no number; unset"),
        ("fit --task synthetic --opt gd", {"LOCAL_RANK": ""}, "the environment has LOCAL_RANK=, which is no number"),
        ("fit --task synthetic --opt gd --store \udcff", {}, "--store '\\udcff': it is not text in UTF-8; rename it"),
        ("sweep --task synthetic --opt gd --workers 99999999 --dry-run", {}, "--workers 99999999: write how many"),
        ("leaderboard -o x.unknown", {}, "-o x.unknown: .unknown names no format; use .md, "),
        ("leaderboard --store runs -o /", {}, "-o /: it is a folder; name a file"),
        ("sql select\t1 --store runs -o /", {}, "-o /: it is a folder; name a file"),
        ("merge /nonexistent X", {}, "there is no store /nonexistent"),
    ],
)
def test_odd_requests_end_in_one_line(cli, store, tmp_path, monkeypatch, words, environment, message) -> None:
    add_run(store, "synthetic-ngd-1")
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert message in fails(cli, *(word.replace("\t", " ") for word in words.split(" ")))
