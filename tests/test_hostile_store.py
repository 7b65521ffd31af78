"""Hostile stores: readers show what is intact, report what is not, run nothing and write nothing."""

import math
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bench.grammar.commands import CHART_NAMES
from bench.store.reports import CheckRecord, StudyRecord, read_report
from tests import hostile
from tests.hostile import MAKE, MUTATIONS, SAFE, Guard, Mutation, tree

EACH = 25
"""Number of victims in a store."""
QUICK, DEEP = range(4), range(4, 40)
"""Numbers of the stores: of the quick tests, and of the deep ones."""
STRIDE = 101
"""Distance in the list between a store's mutations, so that a few stores have some of each kind."""
PARTS = [*QUICK, *(pytest.param(n, marks=pytest.mark.deep) for n in DEEP)]


@pytest.fixture(scope="session")
def guard() -> Guard:
    return Guard()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that contains only code that a store may name."""
    folder = tmp_path / "here"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / f"{hostile.EVIL}.py").write_text(hostile.CODE)
    (folder / f"{hostile.EVIL}_module.py").write_text(hostile.CODE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "none"))
    return folder


def test_all_mutations_are_made_in_forty_stores():
    assert math.gcd(STRIDE, len(MAKE)) == 1
    assert len(MAKE) < EACH * len(PARTS) == 1000


def drawn(number: int) -> list[Mutation]:
    """A mutation for each victim of a store, determined by its number."""
    found: list[list[Mutation]] = []

    @seed(number)
    @settings(
        max_examples=1, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(MUTATIONS, min_size=EACH, max_size=EACH))
    def draw(mutations: list[Mutation]) -> None:
        found.append(mutations)

    draw()
    return found[-1]


def hostile_store(folder: Path, number: int) -> tuple[Path, list[tuple[str, list[str], str]]]:
    """A store with two sound runs and victims: for each its name, the ids of its runs, and its damage."""
    store = folder / "store"
    hostile.sound(store)
    first, victims = EACH * number, []
    for n, m in enumerate(drawn(number), first):
        kind, what, how = MAKE[n * STRIDE % len(MAKE)]
        victims.append((*hostile.spoil(store, n, kind, how, m), f"{kind}: {what}"))
    return store, victims


class Readers:
    """Calls commands that read a store, and asserts after each that nothing has changed."""

    def __init__(self, cli, guard: Guard, store: Path, here: Path) -> None:
        self.cli, self.guard, self.store, self.here = cli, guard, store, here
        self.out = store.parent / "out"
        self.before = tree(store), tree(here)

    def __call__(self, *words: object, codes: tuple[int, ...] = (0, 1)):
        """Call a command; `codes` are the allowed exit codes."""
        with self.guard.watching(self.store, processes=words[0] in ("doctor", "fit")) as seen:
            answer = self.cli(*words)
        assert not seen, (words, seen)
        assert answer.code in codes, (words, answer)
        assert "Traceback" not in answer.out + answer.err
        assert not any(sign in answer.out + answer.err for sign in "\x1b\x00\x07\r\x9b"), words
        lines = answer.err.splitlines()
        assert all(line.startswith(("bench: ", "written to ")) for line in lines), (words, lines)
        errors = [line for line in lines if line.startswith("bench: error: ")]
        # A database that fails midway is an error with exit code 1; then nothing is shown.
        assert len(errors) in ((1,) if answer.code == 2 else (0,) if answer.out or answer.code == 0 else (0, 1)), (
            words,
            lines,
        )
        assert (tree(self.store), tree(self.here)) == self.before, words
        return answer


@pytest.fixture
def readers(cli, guard, here, tmp_path):
    return lambda store: Readers(cli, guard, store, here)


# -- blocks of runs -------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("number", PARTS)
def test_readers_show_sound_records_and_name_the_others(readers, tmp_path, number):
    store, victims = hostile_store(tmp_path, number)
    read = readers(store)
    one, other = (run.run_id for run in (hostile.record(seed, "gd") for seed in (1, 2)))
    listed = read("list", "runs", "--all", "--store", store)
    assert listed.out.count(SAFE) == 2
    assert listed.code == ("is ignored" in listed.err)
    for name, run_ids, what in victims:  # nothing is lost without a message, except a folder that is empty now
        nothing = not (store / name).is_dir() or not any(
            each for each in (store / name).iterdir() if not each.name.startswith((".", hostile.EVIL))
        )
        assert name in listed.err or any(run in listed.out for run in run_ids) or nothing, what
    for view, least in (("runs", 2), ("curves", 2 * hostile.STEPS), ("measurements", 4), ("trials", 0)):
        query = f"select count(*) as n from {view} where run_id like '{SAFE}%'" if least else f"from {view}"
        found = read("sql", query, "--store", store, "--format", "json")
        assert not least or f'"n": {least}' in found.out
        read("sql", f"from {view}", "--store", store, "--format", ("csv", "md", "table", "json")[number % 4])
    assert read("list", "runs", "--store", store).code == listed.code
    assert read("list", "runs", "--json", "--store", store).out.count(f'"run_id": "{SAFE}') == 2
    assert read("show", one, "--store", store).out.startswith(f"{one}: completed\n")
    for name, run_ids, _ in victims[number % 5 :: 5]:
        read("show", run_ids[0], "--store", store, codes=(0, 1, 2))
        read("show", store / name, codes=(0, 1, 2))
    if number < 2:  # which imports everything
        assert read("doctor", "--store", store, "--data", tmp_path / "none").out.count("damaged: ") > 0
    merged = read("merge", store, tmp_path / "merged")
    assert merged.code >= listed.code  # it also reads tables
    assert {one, other} <= {path.name for path in (tmp_path / "merged").iterdir()}
    links = [path for path in (tmp_path / "merged").rglob("*") if path.is_symlink() or path.name.startswith("evil")]
    assert not links
    copied = tree(tmp_path / "merged")
    again = readers(tmp_path / "merged")("list", "runs", "--all", "--store", tmp_path / "merged")
    assert (again.code, again.out.count(SAFE)) == (0, 2), again
    read("merge", store, tmp_path / "merged")
    assert tree(tmp_path / "merged") == copied


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("number", PARTS)
def test_boards_show_sound_records(readers, tmp_path, number):
    store, _ = hostile_store(tmp_path, number)
    read = readers(store)
    for form in ("json", ("table", "md", "csv", "tex", "html")[number % 5]):
        answer = read("leaderboard", "--board", "all", "--mixed-versions", "--store", store, "--format", form)
        assert "gd" in answer.out
        assert "<script>alert" not in answer.out
    read("report", "-o", read.out / "report.html", "--mixed-versions", "--store", store)
    page = (read.out / "report.html").read_text()
    assert "gd" in page
    assert "<script>alert" not in page
    chart = CHART_NAMES[number % len(CHART_NAMES)]
    words = ("plot", chart, "-o", read.out / "chart.svg", "--mixed-versions", "--store", store)
    code = read(*words, codes=(0, 1, 2)).code
    assert (read.out / "chart.svg").is_file() == (code != 2)
    assert chart != "curves" or code != 2


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("number", PARTS)
def test_no_run_of_a_hostile_store_is_gone_on_with_before_it_is_looked_at(readers, tmp_path, number):
    store, victims = hostile_store(tmp_path, number)
    read = readers(store)
    names = {path.name for path in store.iterdir()} | {run for _, runs, _ in victims for run in runs}
    names = {name for name in names if name.isprintable() and not name.startswith("-")}
    for name in sorted(names):
        read("fit", "--resume", name, "--store", store, "--dry-run", codes=(0, 1, 2))


# -- records of studies and checks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(n, marks=pytest.mark.deep) for n in range(2, 6))])
def test_readers_survive_any_study_and_check(readers, tmp_path, number):
    store = tmp_path / "store"
    runs = hostile.sound(store)
    hostile.study(store, "sound", runs)
    hows = list(hostile.FILES.items())
    for n, m in enumerate(drawn(1000 + number), EACH * number):
        path = hostile.study(store, f"study-{n}", runs) if n % 2 else hostile.check(store, n)
        read_report(path, StudyRecord if n % 2 else CheckRecord)  # sound before it is damaged
        hows[n // 2 % len(hows)][1](path, m)
    read = readers(store)
    listed = read("list", "runs", "--all", "--store", store)
    assert (listed.code, listed.out.count(SAFE)) == (1, 2)
    assert '"study": "sound"' in read("sql", "from trials", "--store", store, "--format", "json").out
    read("leaderboard", "--board", "all", "--store", store, codes=(0, 1, 2))
    read("report", "-o", read.out / "report.html", "--store", store)
    assert "<script>alert" not in (read.out / "report.html").read_text()
    read("plot", "sensitivity", "-o", read.out / "chart.svg", "--store", store, codes=(0, 1, 2))
    read("merge", store, tmp_path / "merged")
    assert (tmp_path / "merged" / "studies" / "sound.json").is_file()
    again = readers(tmp_path / "merged")
    assert again("list", "runs", "--store", tmp_path / "merged").code == 0


# -- databases of studies -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two studies; one has trials."""
    from bench.tuning.studies import Studies
    from bench.tuning.tune import make_request, make_spec

    folder = tmp_path_factory.mktemp("database")
    studies = Studies(folder)
    for name, opt in (("sound", "gd"), ("victim", "ngd")):
        spec = make_spec(
            {"task": "synthetic", "opt": opt, "trainer.max_steps": "3", "device": "cpu"},
            sampler=None,
            seeds=[1000],
            report_seeds=[0],
            places={"data": folder, "store": folder},
        )
        study = studies.create(spec, name)
        study.ask(make_request(spec.design, 3, tpe=False, retries=1, report=True))
        study.advance()
    return folder / "studies.db"


BYTES = {
    "truncated": lambda path, m: path.write_bytes(path.read_bytes()[: m.among(path.stat().st_size)]),
    "empty": lambda path, m: path.write_bytes(b""),
    "bytes": lambda path, m: path.write_bytes(m.bits * 1000),
    "a pipe": lambda path, m: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path, m: (path.unlink(), path.mkdir()),
    "a link": lambda path, m: (
        path.rename(path.parents[1] / "elsewhere.db"),
        path.symlink_to(path.parents[1] / "elsewhere.db"),
    ),
    "sparse": lambda path, m: os.truncate(path, 1 << 40),
    "a lock": lambda path, m: os.mkfifo(f"{path}.lock"),
    "a journal": lambda path, m: Path(f"{path}-journal").write_bytes(m.bits * 1000),
}


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.deep) for n in range(1, 6))])
def test_studies_survive_any_database(readers, tmp_path, database, number):
    for n, m in enumerate(drawn(2000 + number)):
        store = tmp_path / f"{n}" / "store"
        store.mkdir(parents=True)
        shutil.copy(database, store)
        path = store / "studies.db"
        (_, spoil), cell = list(BYTES.items())[(number + n) % len(BYTES)], n % 3
        if cell:
            hostile.database_mutation(path, m)
        else:
            spoil(path, m)
        read = readers(store)
        read("list", "studies", "--store", store, codes=(0, 1, 2))
        read("list", "studies", "--store", store, "--json", codes=(0, 1, 2))
