"""All commands with their options, as data."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.grammar.parse import Args, Command, Option
from bench.grammar.parse import parse as parse_words
from bench.grammar.values import (
    FOLDERS,
    filled,
    finite,
    folder,
    names,
    place,
    read_budget,
    read_seeds,
    seconds,
    seeds_or_count,
    whole,
    workers,
)

# -- options that several commands have ------------------------------------------------------------------------------


def _place(name: str, text: str, *, setting: bool = False) -> Option:
    return Option(
        name,
        f"{text} (default: $BENCH_{name.upper()}, else ./{FOLDERS[name]})",
        "DIR",
        partial(place, name),
        None if setting else partial(place, name),
        setting=setting,
    )


def _path(name: str, text: str, value: str = "DIR", **more: Any) -> Option:
    return Option(name, text, value, folder, **more)


def _out(text: str, value: str = "DIR", **more: Any) -> Option:
    return _path("out", text, value, short="o", **more)


def _names(name: str, text: str, **more: Any) -> Option:
    return Option(name, text, "A,B", names, **more)


def _several_opts(text: str) -> Option:
    return replace(OPT, help=text, value="A,B")


DATA = _place("data", "folder of the datasets")
STORE = _place("store", "folder of the runs")
STORES = replace(_place("store", "folder of the runs; several are read as one"), default=None, many=True)
NO_REFERENCE = Option("no-reference", "leave out the shipped reference results")
TASK = Option("task", "a task, see `bench list tasks`", "TASK", kind="task", setting=True)
OPT = Option("opt", "an optimizer, see `bench list optimizers`", "OPTIMIZER", kind="opt", setting=True)
DEVICE = Option("device", "cpu, cuda, mps or auto (default auto)", "D", default="auto")
RUN_DEVICE = replace(DEVICE, default=None, setting=True)
PRECISION = Option(
    "precision",
    "32-true, bf16-mixed, 16-mixed or 64-true (default: the task's)",
    "P",
    setting=True,
)
DATA_SEED = Option("data_seed", "seed of the order of the samples (default: the run's seed)", "N", setting=True)
LOGGER = Option(
    "logger",
    "also log to tensorboard, csv or wandb (extras)",
    "L",
    setting=True,
)
CONFIG = _path("config", "YAML file of settings; flags override it", "FILE")
JSON = Option("json", "print only JSON")
ENGINE = Option(
    "engine",
    "lanes: vectorised runs; lightning: one by one; auto (default): the faster of the two in a short measurement",
    "E",
    default="auto",
    choices=("auto", "lanes", "lightning"),
)
RUN_WORKERS = Option(
    "workers",
    "number of processes that share the runs, or auto: one per GPU, or else one per CPU core (default: one per GPU, or"
    " else one)",
    "N",
    workers,
)
CLUSTER = Option("cluster", "train on a Dask cluster instead: its address, or the scheduler's file", "ADDRESS", filled)
WIDTH = Option(
    "width", "number of lanes at once (default: measured); with --engine auto it selects lanes", "N", whole(1)
)
BUDGET = Option(
    "budget",
    "stop after this time (6h) and continue on the next call, or refuse more than N runs (200runs)",
    "COST",
    read_budget,
)
RUNNING = (ENGINE, RUN_WORKERS, CLUSTER, WIDTH, BUDGET)
"""How the runs of a plan are trained."""
WORKERS = replace(
    RUN_WORKERS,
    help="number of processes that share the runs, or auto (default): one per GPU, or else one per CPU core",
    default="auto",
)
REFERENCE = Option(
    "reference",
    "optimizer to compare the others with (default: adamw, or gd for full batches)",
    "OPTIMIZER",
)
TUNED = Option(
    "tuned",
    "use the settings in tuned/TASK/OPT.yaml, else the shipped ones in configs/tuned; not on seeds that chose them",
)
SETTINGS = ("task", "opt", "trainer")

BOARD_NAMES = ("quality", "pairs", "speed", "theory", "attention")
CHART_NAMES = (
    "forest",
    "curves",
    "sensitivity",
    "profile",
    "steps",
    "budget",
    "attention",
    "stability",
)
FORMAT_NAMES = ("table", "md", "csv", "json", "tex", "html")

_FORMAT = Option("format", "default: from the suffix of the file, else table", "FORMAT", choices=FORMAT_NAMES)
_FILE = _out("write to this file instead of standard output", "FILE")
_CHOICE = (
    _names("task", "only these tasks"),
    _names("opt", "only these optimizers"),
    STORES,
    Option(
        "settings",
        "settings to show for each optimizer: best (default) shows the tuned ones, else the defaults, else the one"
        " set by hand, if there is exactly one",
        "WHICH",
        default="best",
        choices=("best", "tuned", "default", "all"),
    ),
    Option(
        "only",
        "only runs with this setting (trainer.max_steps=1000, task.H=4), version (versions.torch=2.15.0) or engine",
        "NAME=VALUE",
        many=True,
    ),
    Option("label", "show this optimizer or row as TEXT: my_opt.py:MyOpt=Ours", "NAME=TEXT", many=True),
    NO_REFERENCE,
    Option("mixed-versions", "compare runs of different versions"),
    REFERENCE,
    Option(
        "target",
        "value of the metric that counts as reached, for the board `speed` and profiles (default: the task's)",
        "VALUE",
        finite,
    ),
)
_ASK_ONLY = "it selects existing runs; write --only NAME=VALUE, as in --only trainer.max_steps=1000"


def _several(what: str) -> dict[str, str]:
    return {"seed": f"{what} several; write --seeds {{0}},... or --seeds COUNT"}


# -- the commands ----------------------------------------------------------------------------------------------------

_ALL = (
    Command(
        "quickstart", "a first comparison within seconds: four optimizers, a ranked table, a plot",
        text="Train four optimizers on a small synthetic task with seven seeds each, rank them, explain the ranking,"
        " and draw their training curves. The command downloads and tunes nothing.",
        more="If its runs are stored, the command takes about 2 s.",
        options=(
            _out("plot, ends in .png, .pdf, .svg or .html (default: quickstart.png)", "FILE",
                 default=Path("quickstart.png")),
            JSON, DATA, STORE,
        ),
    ),
    Command(
        "fit", "train one task with one optimizer and store the result",
        text="Train one task with one optimizer and store the result.",
        form="--task TASK --opt OPTIMIZER [--task.* ...] [--opt.* ...] [--trainer.* ...]",
        groups=SETTINGS,
        elsewhere={"gpus": "devices share a run's batch with --trainer.devices {0}, and seeds with --workers {0}"},
        options=(
            TASK, OPT,
            Option("seed", "seed of problem instance, initialisation and dropout (default 0)", "N", setting=True),
            Option("seeds", "one run per seed, and their mean: a number (5: seeds 0 to 4) or a list"
                   " (3,5,8; 10:15 is 10 to 14)", "SEEDS", read_seeds),
            DATA_SEED, CONFIG, TUNED, RUN_DEVICE, PRECISION,
            replace(ENGINE, help="for several seeds: " + ENGINE.help, default=None), *RUNNING[1:],
            Option("resume", "continue an interrupted run (on CPUs bit for bit)", "RUN"),
            Option("rerun", "train again even if the result is stored"),
            LOGGER,
            Option("dry-run", "print the resolved configuration and exit"),
            JSON,
            _place("data", "folder of the datasets, also for downloads", setting=True),
            _place("store", "folder of the runs", setting=True),
        ),
    ),
    Command(
        "sweep", "train many learning rates and seeds as vectorised runs: table and plot of sensitivity",
        text="Train many settings and seeds of a task, vectorised where that is faster, and show how the result"
        " depends on them.",
        more="Settings in dotted form as in `bench fit`; a value may be a range LOW:HIGH or LOW:HIGH:POINTS,"
             " log-spaced (--opt.lr 1e-3:1e1:16), or a list (--task.sigma 0.2,0.4). --opt.adam.lr is for adam alone."
        " An optimizer without a varied setting gets a grid over its search range (`bench show adam`), unless --tuned"
        " fixes its settings. Stored runs are reused, so the same command continues an interrupted sweep; in a second"
        " terminal it shares the work.",
        groups=SETTINGS, elsewhere=_several("a sweep has"),
        options=(
            TASK, _several_opts("one or more optimizers: ngd,adam"),
            Option("seeds", "a number (32: seeds 0 to 31) or a list (3,5,8; 10:15 is 10 to 14); default 8",
                   "SEEDS", read_seeds, default=lambda: [*range(8)]),
            CONFIG, Option("tuned", "fix the settings to those in tuned/TASK/OPT.yaml, or else in configs/tuned"),
            *RUNNING,
            _out("folder of table and plot (default: swept/TASK/OPT-HASH, with a hash of the set of runs)"),
            RUN_DEVICE, replace(PRECISION, help="lanes need 32-true or 64-true (default: the task's)"),
            DATA_SEED, LOGGER,
            JSON, Option("dry-run", "list the runs and exit"), DATA, STORE,
        ),
    ),
    Command(
        "compare", "compare your optimizer with a baseline: check, tuning, fresh seeds, verdicts, a plot",
        text="Compare optimizers with a baseline on one or more tasks: run the checks of `bench check`, tune all with"
        " equal budgets (`bench suite`), run the winners on fresh seeds, and show the board `quality` with verdicts"
        " and a plot.",
        more="The search is centred on the ranges that an optimizer declares, or on --opt.lr LOW:HIGH."
             " --opt.NAME is for all optimizers of --opt, and --opt.adamw.NAME for adamw alone. Stored runs are"
             " reused, so the same command continues after an interruption."
        " If the reference results include the baseline, it is not tuned again, and the others get its number of"
        " trials. Exit code 1: a check failed, or an optimizer has no winner.",
        groups=SETTINGS, elsewhere=_several("trials have") | {"logger": "trials have none"},
        options=(
            replace(TASK, help="one or more tasks, as `bench list tasks` prints them: mnist,lm", value="A,B"),
            _several_opts("one or more optimizers: my_file.py:MyOpt,ngd"),
            _names("against", "baselines to tune as well; the first is the reference (default: adamw, or gd for full"
                   " batches)", kind="opt"),
            CONFIG,
            Option("trials", "trials of each optimizer (default: nine); if one grid grows, the others get as many",
                   "N", whole()),
            Option("seeds", "tuning seeds of each trial: a number (2: seeds 1000 and 1001) or a list; default"
                   " 2, or those of the reference results", "SEEDS"),
            Option("report_seeds", "fresh seeds of each winner: a number (default 7: seeds 0 to 6) or a list;"
                   " fewer than 7 cannot decide a verdict", "SEEDS", default="7"),
            NO_REFERENCE,
            BUDGET,
            Option("anyway", "continue even if a failed check changes results"),
            _out("folder of tables, plots and settings (default: compared/TASK/OPT)"),
            RUN_DEVICE, PRECISION, DATA_SEED, JSON,
            Option("dry-run", "print the plan, the stored part of it, and its approximate duration"),
            WORKERS, CLUSTER, ENGINE, WIDTH, DATA, STORE,
        ),
    ),
    Command(
        "tune", "find an optimizer's hyperparameters on a task",
        text="Find an optimizer's hyperparameters on a task: run trials on separate seeds, choose the winner on"
        " validation data, and run it on fresh seeds. Write TASK/OPT.yaml for `bench fit --tuned` and a sensitivity"
        " plot.",
        more="Settings in dotted form as in `bench fit`. The search is centred on the ranges that the optimizer"
             " declares (`bench show sngd`), or on a given range (--opt.lr 1e-3:1e1). A grid (--opt.lr 1e-3:1e1:9) or"
             " a list (--opt.momentum 0,0.9) is tried unchanged. A single value fixes a setting. The same command"
             " continues a study; with more --trials it adds trials.",
        groups=SETTINGS,
        elsewhere=_several("trials have") | {"logger": "trials have none; their curves are in the store"},
        options=(
            TASK, OPT, CONFIG,
            Option("trials", "number of trials (default: nine). A grid starts at the middle of the ranges, whatever"
                             " their width. It adds up to 8 points beyond an edge while the best point is there",
                   "N", whole()),
            BUDGET,
            Option("seeds", "tuning seeds of each trial: a number (2: seeds 1000 and 1001) or a list (5,6;"
                   " 10:15); default 2", "SEEDS"),
            Option("report_seeds", "fresh seeds of the winner: a number (default 7: seeds 0 to 6) or a list;"
                   " fewer than 7 cannot decide a verdict", "SEEDS"),
            Option("sampler", "grid (default for up to two ranges): half decades of the first range, decades of the"
                   " second, more at an edge; qmc: Halton sequence; tpe (default for more): Optuna's TPE after nine"
                   " points of that sequence", "S",
                   choices=("grid", "qmc", "tpe")),
            Option("storage", "also add the trials to this storage of Optuna, such as sqlite:///studies.db", "URL"),
            _out("folder of TASK/OPT.yaml and the plot (default: tuned)"),
            RUN_DEVICE, PRECISION, DATA_SEED, JSON,
            Option("dry-run", "print the trials of the design and exit"),
            WORKERS, CLUSTER, ENGINE, WIDTH, DATA, STORE,
        ),
    ),
    Command(
        "suite", "tune optimizers on tasks with equal budgets, then run the winners",
        text="Tune each optimizer on each task with the same number of trials, then run the winners on fresh seeds."
        " Stored runs are reused, so the same command continues after an interruption; in a second terminal it shares"
        " the work.",
        positionals=(Option("file", "a YAML file, or the name of one in configs/suites", "FILE"),),
        options=(
            Option("dry-run", "print the plan, the stored part of it, and its approximate duration"),
            _names("task", "only these of its tasks"), _names("opt", "only these of its optimizers"),
            WORKERS, CLUSTER, ENGINE, WIDTH,
            BUDGET,
            _out("folder of settings and plots (default: tuned)", default=Path("tuned")),
            JSON, DATA, STORE,
        ),
    ),
    Command(
        "leaderboard", "compare optimizers from the stored runs, with verdicts and intervals",
        text="Compare optimizers from the stored runs: means and intervals over seeds, and for each row a verdict"
             " against the reference that remains valid when larger seeds are added.",
        more="Boards: quality (final metric at the tuned settings), pairs (all pairs of optimizers), speed (steps"
        " and seconds to the target), theory (alignment, rates),"
        " attention (runs with --trainer.observe). Without a board, the verdicts of all optimizers on all tasks."
        " Exit code 1: a run could not be read.",
        elsewhere={"seed": _ASK_ONLY, "seeds": _ASK_ONLY},
        options=(
            _names("board", "names of boards, or `all` (default: quality; to a terminal, the matrix of verdicts)"),
            Option("all", "print all boards"),
            Option("explain", "explain this row instead: search space, split, cost, reductions, commands",
                   "ROW"),
            _names("columns", "only these columns, by their names in --format csv: final,effect,verdict"),
            _FORMAT, replace(JSON, help="short for --format json"), _FILE,
            _path("into", "write Markdown between the markers of this board in a file that has them", "FILE.md"),
            *_CHOICE,
        ),
    ),
    Command(
        "report", "write boards, charts and commands as one HTML page that needs no network",
        text="Write all boards, charts and the commands behind each row as one HTML page, which needs no network.",
        more="The same store gives a bit-identical page. Exit code 1: a run could not be read.",
        options=(_out("default report.html", "FILE", default=Path("report.html")), JSON, *_CHOICE),
    ),
    Command(
        "plot", "draw stored runs for a paper: effects, curves, sensitivity, profiles, step sizes, budgets",
        text="Draw stored runs for a paper, one panel per problem, as PNG, PDF, SVG or interactive HTML by the"
             " file's suffix.",
        more="forest: effect of each optimizer against the reference, with interval and verdict; curves: training loss,"
        " or --y COLUMN, against optimizer steps; sensitivity: score of each trial against the searched settings;"
        " profile: share of runs that have reached the target against the budget; steps: step sizes"
        " before and after their cap; budget: expected best of k trials; attention, stability: measurements of runs"
        " with --trainer.observe. Exit code 1: a run could not be read.",
        positionals=(Option("chart", "what to draw", "CHART", choices=CHART_NAMES),),
        options=(
            _out("ends in .png, .pdf, .svg or .html", "FILE"),
            Option("y", "for curves: a column such as grad_norm or alignment, or an evaluated quantity such as"
                   " accuracy or val_loss (default loss)", "COLUMN"),
            Option("x", "for curves: steps (default), epochs or seconds", "AXIS",
                   choices=("steps", "epochs", "seconds")),
            Option("no-caption", "omit the text below the panels and the title of a single panel"),
            JSON, *_CHOICE,
        ),
    ),
    Command(
        "reproduce", "run a paper's experiment: figure, data and tested claims",
        text="Run a paper's experiment and write a figure, the data behind it, and a page with tested claims.",
        more="Settings in dotted form, as in `bench fit`, change all arms: --trainer.max_epochs 5. Stored runs are"
             " reused, so the same command continues an interrupted experiment; in a second terminal it shares the"
             " work.",
        positionals=(Option("name", "an experiment, see `bench reproduce --list`", "NAME", kind="experiment",
                            least=0),),
        groups=SETTINGS, elsewhere={"seed": "an experiment has several; write --seeds COUNT"},
        options=(
            Option("list", "list the experiments and exit"),
            Option("quick", "few seeds and steps, under a minute; not evidence"),
            Option("search", "also search the constants that the paper does not state"),
            Option("seeds", "a number (5: those of the experiment first, then the next integers) or a list (0,1,2;"
                   " 10:15 is 10 to 14)", "SEEDS", seeds_or_count),
            _out("folder of the output (default: reproduced/NAME, NAME-quick, NAME-changed)"),
            DEVICE, JSON, *RUNNING, Option("dry-run", "list the runs and exit"), DATA, STORE,
        ),
    ),
    Command(
        "claims", "show the verdicts on the claims of all papers",
        text="Show the verdicts on the claims of all papers, from the shipped pages of `bench reproduce`: how many"
        " hold or fail, and every claim with its effect.",
        more="A claim holds, fails or is undecided only for an experiment as its paper defines it; the page 'Reproduce"
        " a paper' of the docs defines the other verdicts. Exit code 1: a page could not be read.",
        positionals=(_path("folder", "folder of PAPER/EXPERIMENT/claims.json (default: the shipped pages)", least=0),),
        options=(
            _names("paper", "only these papers: vasudeva2025"),
            Option("json", "short for --format json"), _FORMAT, _FILE,
            _path("into", "write Markdown between the markers of `claims` in a file that has them", "FILE.md"),
        ),
    ),
    Command(
        "sql", "query runs, curves, measurements and trials with SQL",
        text="Query runs, curves, measurements and trials of studies with DuckDB's SQL.",
        more="Views: runs, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one."
        " settings->>'opt.lr' is a setting of a run. Example: bench sql \"select opt, count(final), avg(final) from"
        " runs where task = 'synthetic' and study is null group by opt\". Exit code 1: something could not be"
        " read and was left out.",
        positionals=(Option("query", "one read-only statement", "QUERY"),),
        options=(
            STORES, NO_REFERENCE,
            Option("format", _FORMAT.help, "FORMAT", choices=("table", "md", "csv", "json")),
            replace(JSON, help="short for --format json"), _FILE,
        ),
    ),
    Command(
        "merge", "copy the runs of stores into another one",
        text="Copy the runs of stores, and their records of studies and checks, into another store.",
        more="Runs in the destination are kept, but a finished run replaces an unfinished one. The same command"
             " continues an interrupted merge. Exit code 1:"
        " something could not be read.",
        positionals=(
            _path("source", "a store; it is only read", "SOURCE", most=0),
            _path("dest", "the destination, created if it does not exist", "DEST"),
        ),
        options=(JSON,),
    ),
    Command(
        "verify", "retrain runs of a store or of the reference results, and compare",
        text="Retrain a random sample of the runs of a store or of the reference results, and report whether they are"
        " confirmed.",
        more="On the same type of processor, with the same versions and engine, a run must agree bit for bit; otherwise"
        " up to rounding, or within the spread over seeds. Plug-ins that PATH names are imported only if --opt or"
        " --task also names them. Exit code 1: a run was refuted or is damaged, or no run could be repeated.",
        positionals=(_path("path", "a store (default: the reference results)", "PATH", least=0),),
        options=(
            Option("runs", "number of runs (default 3)", "N", whole(1), default=3),
            Option("seed", "seed of the random sample (default: different each time)", "N", whole(0)),
            _names("task", "only of these tasks; a plug-in as file.py:SPEC"),
            _names("opt", "only of these optimizers; a plug-in as file.py:NAME"),
            DATA, JSON,
        ),
    ),
    Command(
        "new", "write a package with an optimizer or a task of your own",
        text="Write a small, complete package with an optimizer or a task: class, spec, test, README.",
        positionals=(
            Option("kind", "what to create", "KIND", choices=("optimizer", "task")),
            Option("name", "name of the package, and of the optimizer or task: my_opt", "NAME"),
        ),
        options=(_out("folder to create (default: ./NAME)"), JSON),
    ),
    Command(
        "check", "check that an optimizer or a task, built-in or plug-in, behaves as training code expects",
        text="Check that an optimizer behaves as training code expects: resume, groups, schedules, unusual tensors,"
        " closures, DDP, FSDP2, ...",
        more="Options such as --opt.lr 0.1 set its hyperparameters. Exit code 1: a failure changes results or blocks a"
        " set-up.",
        form="NAME | module:Class | file.py:Class | --matrix A,B | --task TASK [--opt.NAME VALUE ...] [options]",
        positionals=(Option("opt", "an optimizer of `bench list optimizers`, module:Class or file.py:Class", "NAME",
                            least=0),),
        groups=("opt", "task"),
        options=(
            Option("task", "check a task instead: a name of `bench list tasks`, module:SPEC or file.py:SPEC, with its"
                   " options as --task.NAME VALUE", "TASK"),
            _names("matrix", "check many optimizers, one row of a table each: a module (torch.optim) or file for all"
                   " of its classes, module:Class, or a name; write muon: for a module with an optimizer's name"),
            _out("file of the matrix: .html, .md, .csv, .json, .tex or .txt (default: Markdown on standard output);"
                 " may be repeated", "FILE", many=True),
            _names("only", "only these checks"),
            Option("reference", "what its steps must equal: another optimizer, or a float64 function of flat vectors",
                   "OPTIMIZER|MODULE:FUNCTION"),
            Option("quick", "leave out the checks that start processes and trainings: DDP, FSDP2, lanes, ..."),
            Option("limit", "time limit of one check (default 30)", "SECONDS", seconds),
            JSON,
            DATA, _place("store", "folder of the runs, which also stores the results of checks for the leaderboard"),
            Option("list", "list the checks: what they mean, their tolerances, and how to mend a failure"),
        ),
    ),
    Command(
        "list", "list tasks, optimizers, runs or studies",
        text="List tasks, optimizers, stored runs (newest first), or studies.",
        more="The filters apply only to runs; --store also applies to studies. Runs that differ only in their"
             " seeds share a line, with the median of their results. The runs of a study share a line, and so do the"
             " sweeps of an optimizer on a problem, with the median at the best settings."
             " Exit code 1: something could not be read.",
        positionals=(Option("what", "what to list", "WHAT",
                            choices=("tasks", "optimizers", "runs", "studies")),),
        options=(
            JSON, STORES,
            _names("task", "only these tasks", default=list), _names("opt", "only these optimizers", default=list),
            _names("status", "only these statuses: running, failed, ...", default=list),
            Option("since", "only runs that began since this date (2026-11-22) or within this time (30m, 2h, 3d, 1w)",
                   "WHEN", default=""),
            Option("all", "one line per run"),
            Option("limit", "maximum number of lines", "N", whole(1)),
        ),
    ),
    Command(
        "show", "describe a task, an optimizer, a paper's experiment or a stored run",
        text="Describe a task, an optimizer, a paper's experiment or a stored run.",
        more="For a run: result, settings, notes, and the commands that repeat, resume and plot it.",
        positionals=(
            Option("name", "a task, an optimizer, an experiment, the id of a run, or the path of its folder", "NAME"),
        ),
        options=(JSON, STORES),
    ),
    Command(
        "data", "show which files of a task's data exist, or fetch and tokenise them",
        text="Show which files of a task's data exist, or fetch them over the network, and tokenise texts.",
        more="`prepare` also takes the task's options: bench data prepare --task mnli --task.model DIR. Exit code 1: a"
        " file is missing or damaged. Tokens are cached in $BENCH_CACHE, else ~/.cache/attention-optimizer-bench.",
        positionals=(Option("what", "what to do", "WHAT", choices=("status", "prepare")),),
        groups=("task",),
        options=(
            Option("task", "the task; without it, `status` shows all tasks that have files", "TASK"),
            JSON, DATA,
        ),
    ),
    Command(
        "doctor", "check this machine, its data and its store", text="Check this machine, its data and its store.",
        options=(JSON, DATA, STORE),
    ),
)  # fmt: skip

COMMANDS = {command.name: command for command in _ALL}
"""Every command by name."""


def parse(name: str, words: list[str]) -> Args:
    """Parse the words after a command's name.

    Raises:
        UserError: a word is misspelt, out of place, or lacks its value.
    """
    return parse_words(COMMANDS[name], words)
