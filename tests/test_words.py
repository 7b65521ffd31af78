"""The command line of all commands: every kind of invalid word at every command, and the error."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.cli.commands import COMMANDS, options_of, parameters_of, parse
from bench.errors import nearest
from bench.tuning.design import EXTENSION_LIMIT
from tests.test_cli import fails

BASE = {
    "suite": ("theory",),
    "plot": ("curves",),
    "sql": ("select 1",),
    "merge": ("a", "b"),
    "new": ("optimizer", "mine"),
    "list": ("runs",),
    "show": ("sngd",),
    "data": ("status",),
}
"""Required words of commands."""


def bad_words(name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """A command with every kind of invalid word, and the hint."""
    base, options = (name, *BASE.get(name, ())), options_of(name)
    yield (*base, "--xyzzy", "1"), f"unknown option '--xyzzy'; `bench {name} -h` lists the options"
    yield (*base, "-q"), f"unknown option '-q'; `bench {name} -h` lists the options"
    if name != "merge":  # which takes any number
        yield (*base, "a b", "a b"), "unexpected word 'a b'"
    for parameter in parameters_of(name):
        option = f"--{parameter.name.replace('_', '-')}"
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        slip = option[:3] + option[4:5] + option[3:4] + option[5:]
        if slip != option and nearest(slip, options) == option:
            yield (*base, slip, "1"), f"unknown option '{slip}'; did you mean"
        if parameter.annotation.__origin__ is bool:
            yield (*base, f"{option}=3"), f"{option} is a switch and takes no value"
        else:
            yield (*base, option), f"{option} needs "


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_words_of_a_command(cli, store, name) -> None:
    for words, hint in bad_words(name):
        error = fails(cli, *words)
        assert hint in error, words
        assert len(error) < 600
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("swepe", "unknown command 'swepe'; did you mean 'sweep'?"),
        ("optimize", "did you mean 'tune'?"),
        ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
        ("fit --epochs 5", "unknown option '--epochs'; did you mean '--trainer.max_epochs'?"),
        ("fit --learning-rate=1", "did you mean '--opt.lr'?"),
        ("fit --batch-size 8", "did you mean '--trainer.batch_size'?"),
        ("tune --gpus 2", "did you mean '--workers'?"),
        ("fit --optimizer sgd", "did you mean '--opt'?"),
        ("trian", "did you mean 'fit'?"),
        ("eval", "did you mean 'leaderboard'?"),
        ("prepare", "did you mean 'data prepare'?"),
        ("version", "did you mean '--version'?"),
        ("fit --bs 8", "did you mean '--trainer.batch_size'?"),
        ("fit --depth 3", "did you mean '--task.depth'?"),
        ("fit --dropout 0.1", "did you mean '--task.dropout'?"),
        ("fit --schedule cosine", "did you mean '--trainer.schedule'?"),
        ("fit --force", "did you mean '--rerun'?"),
        ("fit --otp ngd", "did you mean '--opt'?"),
        ("fit --trainer 3", "did you mean '--trainer.NAME'?"),
        ("fit --trianer.max_stpes 3", "did you mean '--trainer.max_steps'?"),
        ("fit --sampler qmc", "unknown option '--sampler'; it belongs to `bench tune`; see `bench fit -h`"),
        ("check --opt sgd", "unknown option '--opt'; write bench check OPTIMIZER, without it"),
        ("sql --query x", "unknown option '--query'; write bench sql QUERY, without it"),
        ("list opt", "did you mean 'optimizers'?"),
        ("tune --task synthetic --opt ngd,gd", "unknown optimizer 'ngd,gd'; give one; `bench compare` takes several"),
        ("fit --task synthetic --opt ngd --trainer.bs 3", "did you mean '--trainer.batch_size'?"),
        ("fit --task mnist --opt ngd --task.layers 3", "did you mean '--task.depth'?"),
        (
            "fit --task synthetic --opt ngd --task.depth 3",
            "`bench fit --task synthetic --opt ngd -h` lists the options",
        ),
        ("fit --task synthetic --opt ngd --opt.lr nan", "--opt.lr 'nan': it must be a number\n"),
        ("fit --task synthetic --opt ngd --device cuda:0", "--device 'cuda:0': it takes cpu or cuda"),
        ("fit --task synthetic --opt ngd --trainer.schedule cosin", "or wsd; did you mean 'cosine'?"),
        ("fit --task synthetic --opt ngd --data pyproject.toml", "'pyproject.toml': it is a file, not a folder"),
        ("fit --opt adam --opt.beta1 0.9", "--task is missing"),
        ("fit --task mnist --opt adam --opt.beta1 0.9", "unknown option '--opt.beta1'; did you mean '--opt.betas'?"),
        ("fit --task mnist --opt sgd --trainer.epochs 3", "did you mean '--trainer.max_epochs'?"),
        ("fit --task mnist --opt sgd --opt.learning-rate 3", "did you mean '--opt.lr'?"),
        ("fit --task mnist --opt sgd --task.dpeth 3", "did you mean '--task.depth'?"),
        ("sweep --output here", "did you mean '--out'?"),
        ("tune --n_trials 3", "did you mean '--trials'?"),
        ("fit --task synthetic --opt ngd --seeds 0", "--seeds 0: "),
        ("fit --task synthetic --opt ngd --seeds 2 --seed 1", "--seed is for one run; remove it or --seeds"),
        ("fit --task synthetic --opt ngd --workers 2", "--workers is for several runs; give --seeds too, or leave"),
        ("suite theroy", "unknown suite 'theroy'; did you mean 'theory'?"),
        ("fit --task mnist --opt sgd,adam", "--opt sgd,adam: bench fit trains one run; `bench sweep` takes"),
        (
            "fit --task mnist --opt sgd --opt.lr 1e-3:1e0:7",
            "--opt.lr 1e-3:1e0:7: bench fit trains one run; `bench sweep`",
        ),
        ("fit --task mnist --opt rmsprop", "unknown optimizer 'rmsprop'; known: "),
        ("fit --task cifar --opt sgd", "unknown task 'cifar'; did you mean 'cifar10'?"),
        ("sweep --task synthetic --opt sgd --seeds 5:3", "--seeds 5:3: write how many (--seeds 5), or which"),
        ("sweep --task synthetic --opt sgd --width=-1", "--width -1: it must be at least 1"),
        ("leaderboard --target inf", "--target inf: it is not a finite number"),
        ("check sgd --only ,", "--only ,: it is empty; write A,B"),
        ("tune --task synthetic --opt gd --storage=", "--storage '': it is empty"),
    ],
)
def test_synonyms_of_other_programs_are_suggested(cli, words: str, hint: str) -> None:
    assert hint in fails(cli, *words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--opt sgd --opt.lr -1",
            "--opt.lr=-1.0: Invalid learning rate: -1.0 (learning rate: step per unit of the update, in [0, inf)",
        ),
        ("--opt sngd --opt.lr -1", "--opt.lr=-1.0 is out of range: it must be in [0, inf)"),
        ("--opt sgd --opt.nesterov", "--opt: Nesterov momentum requires a momentum and zero dampening"),
        ("--opt torch.optim:Adagrad --opt.lr -2", "--opt.lr=-2.0: Invalid learning rate: -2.0"),
    ],
)
def test_errors_of_torchs_optimizers_name_the_option_and_the_range(cli, words: str, message: str) -> None:
    assert message in fails(cli, "fit", "--task", "synthetic", *words.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_given_anywhere(cli, name: str) -> None:
    text = cli(name, "-h")
    assert (text.code, text.err) == (0, "")
    assert text.out.startswith(f"Usage: bench {name} ")
    for words in ((name, "--xyzzy", "--help"), ("-h", name), ("help", name), (name, "a", "b", "-h", "--store")):
        assert cli(*words) == text
    for option in options_of(name)[:-1]:
        assert option.replace("_", "-") in text.out.split()
    assert max(map(len, text.out.splitlines())) <= 120


def test_dashes_and_underscores_are_alike(cli) -> None:
    words = ("fit", "--task", "synthetic", "--opt", "adam")
    for one, other in (
        (("--data_seed", "3"), ("--data-seed", "3")),
        (("--opt.weight_decay", "0.1"), ("--opt.weight-decay", "0.1")),
        (("--trainer.max_steps=3",), ("--trainer.max-steps=3",)),
    ):
        answers = [cli(*words, *more, dry) for more in (one, other) for dry in ("--dry-run", "--dry_run")]
        assert answers[0].code == 0
        assert len(set(answers)) == 1


def test_numbers_in_the_help_are_those_of_the_program(cli) -> None:
    assert f"adds up to {EXTENSION_LIMIT} points beyond" in " ".join(cli("tune", "-h").out.split())


def test_help_of_a_command_has_the_options_of_the_named_task_and_optimizer(cli) -> None:
    for name in ("fit", "sweep", "tune"):
        text = cli(name, "--opt", "sngd", "--task", "mnist", "-h").out
        assert "--opt.max_step " in text
        assert "--task.depth " in text
    assert "--opt.betas" in cli("sweep", "--opt", "ngd,adam", "-h").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("fit --task mnist --opt sngd -h", 0),
        ("fit --task mnist --opt sngd --opt.lrr 1", 2),
        ("report --formt x", 2),
    ],
)
def test_help_and_usage_errors_import_nothing_slow(words: str, code: int) -> None:
    program = (
        "import sys\nfrom bench.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    slow = {'torch', 'lightning', 'numpy', 'pandas', 'altair', 'optuna'} & {*sys.modules}\n"
        "    assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


# -- a store that is a file -------------------------------------------------------------------------------------------

RUN = "--task synthetic --opt sgd"


@pytest.mark.parametrize(
    "words",
    [
        "list runs", "leaderboard", "report", "plot curves -o x.png", "sql select", "show a",
        "list studies", "doctor", f"sweep {RUN} --opt.lr 1,2", f"tune {RUN}", "suite theory",
        f"compare {RUN}", f"fit {RUN}", "reproduce deora2024/fig2", "check sgd",
    ],
)  # fmt: skip
def test_a_store_that_is_a_file_is_said_everywhere(cli, tmp_path, monkeypatch, words) -> None:
    file = tmp_path / "file"
    file.touch()
    line = f"bench: error: --store (or BENCH_STORE) '{file}': it is a file, not a folder; leave it out"
    for more in (["--store", str(file)], []):
        answer = cli(*words.split(), *more)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert answer.err.startswith(line)
        monkeypatch.setenv("BENCH_STORE", str(file))


def test_several_of_an_option_that_takes_a_list_are_a_list() -> None:
    words = ["--task", "synthetic", "--opt", "gd", "--opt", "ngd,adam"]
    assert parse("sweep", words).keywords["opt"] == ["gd", "ngd,adam"]
    assert parse("fit", ["--store", "a", "--store", "b"]).keywords["store"] == "b"
