"""Machines without a common file system share runs through PostgreSQL; here each has a store of its own."""

import json
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bench.config.run_config import resolve
from bench.errors import RunFailed
from bench.execute.exchange import BlockClaim, Exchange
from bench.execute.plan import Plan
from bench.machine import this_process
from bench.store.bundle import pack
from bench.store.store import Store
from tests.daemons import until
from tests.outcomes import leftovers, outcome
from tests.slow import SLOW

SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1:1:4", "--seeds", "2", "--device", "cpu",
         "--trainer.max_steps", "30", "--engine", "lanes", "--width", "2")  # fmt: skip
SLOWLY = ("sweep", "--task", "synthetic", "--opt", SLOW, "--opt.lr", "0.01:0.1:6", "--seeds", "1", "--device", "cpu",
          "--trainer.max_steps", "150", "--engine", "lightning")  # fmt: skip
BREAKS = '''
import os
from torch.optim import SGD

class Breaks(SGD):
    """SGD that fails with one step size where a file exists."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.5 and os.path.exists(os.environ["BREAK"]):
            raise FloatingPointError("too long")
        return super().step(closure)
'''

pytestmark = pytest.mark.deep


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def name_in(answer: Any) -> str:
    """The plan that `--create` has put into the database."""
    assert answer.code == 0, answer.err
    return answer.out.split()[1]


def change(url: str, statement: str, **values: object) -> None:
    """Change the database as another program may."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
    engine.dispose()


def plan(here: Path, count: int = 3) -> Plan:
    return Plan("p", [resolve({"task": "synthetic", "opt": "ngd", "seed": seed, "device": "cpu", "store": here / "s",
                               "trainer.max_steps": 3}) for seed in range(count)])  # fmt: skip


def test_a_worker_with_another_store_trains_the_runs_and_the_command_collects_them(cli, postgres_url, here) -> None:
    created = cli(*SWEEP, "--store", "mine", "--storage", postgres_url, "--create")
    name = name_in(created)
    assert "***" in created.out
    assert created.out.rstrip().endswith(f"with the same --storage: bench worker --plan {name}")
    assert [path.name for path in Path("mine").iterdir()] == ["plans"]
    worked = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert (worked.code, worked.out) == (0, "")
    assert leftovers(here / "theirs") == []
    shown = cli(*SWEEP, "--store", "mine", "--storage", postgres_url)
    assert shown.code == 0, shown.err
    assert "lanes at once" not in shown.err, "nothing was left to train"
    assert cli(*SWEEP, "--store", "alone").code == 0
    assert outcome(here / "mine") == outcome(here / "theirs") == outcome(here / "alone")
    assert leftovers(here / "mine") == []
    assert not (here / "mine" / "plans").exists()
    late = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "late")
    assert (late.code, outcome(here / "late")) == (0, {}), "nothing is left to do"
    third = cli(*SWEEP, "--store", "third", "--storage", postgres_url)
    assert third.code == 0, third.err
    assert outcome(here / "third") == outcome(here / "alone"), "results stay for other commands"
    unknown = cli("worker", "--plan", "other", "--storage", postgres_url, "--store", "theirs")
    assert unknown.code == 2
    assert f"existing plans: {name}" in unknown.err


def test_an_experiment_is_shared_too(cli, postgres_url, here) -> None:
    words = ("reproduce", "vasudeva2025/fixed-decoder", "--quick", "--trainer.max_steps", "20", "--device", "cpu",
             "--storage", postgres_url)  # fmt: skip
    name = name_in(cli(*words, "--store", "mine", "--create"))
    assert cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs").code == 0
    shown = cli(*words, "--store", "mine")
    assert shown.code == 0, shown.err
    assert {run.plan for run in Store(here / "mine").runs()} == {"experiment vasudeva2025/fixed-decoder"}


def worker(name: str, url: str, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench", "worker", "--plan", name, "--storage", url, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_machines_share_the_runs_and_one_that_is_killed_loses_nothing(cli, postgres_url, here) -> None:
    name = name_in(cli(*SLOWLY, "--store", "mine", "--storage", postgres_url, "--create"))
    killed, other = (worker(name, postgres_url, "--store", store, "--opt", SLOW) for store in ("killed", "theirs"))
    for store in ("killed", "theirs"):
        until(lambda store=store: list(Path(store).glob("*/attempt-1/curve.raw")), "both train", seconds=300)
    killed.send_signal(signal.SIGKILL)
    answer = cli(*SLOWLY, "--store", "mine", "--storage", postgres_url, "--workers", "2")
    assert answer.code == 0, answer.err
    for process, code in ((killed, -signal.SIGKILL), (other, 0)):
        _, err = process.communicate(timeout=300)
        assert process.returncode == code, err
    assert cli(*SLOWLY, "--store", "alone").code == 0
    assert outcome(here / "mine") == outcome(here / "alone")
    assert 1 <= len(outcome(here / "theirs")) < 6


def test_a_stopped_worker_gives_its_run_back(cli, postgres_url, here) -> None:
    name = name_in(cli(*SLOWLY, "--store", "mine", "--storage", postgres_url, "--create"))
    other = worker(name, postgres_url, "--store", "theirs", "--opt", SLOW)
    until(lambda: list(Path("theirs").glob("*/attempt-1/curve.raw")) or other.poll() is not None, "it trains")
    other.send_signal(signal.SIGTERM)
    _, err = other.communicate(timeout=300)
    assert other.returncode == 130, err
    claims = Exchange(postgres_url).claims(name)
    assert claims is not None
    assert all(claim.ended for claim in claims.values())
    again = worker(name, postgres_url, "--store", "theirs", "--opt", SLOW)
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert cli(*SLOWLY, "--store", "mine", "--storage", postgres_url).code == 0
    assert cli(*SLOWLY, "--store", "alone").code == 0
    assert outcome(here / "mine") == outcome(here / "alone")


def test_a_run_that_breaks_elsewhere_is_told_and_tried_again(cli, postgres_url, here, monkeypatch) -> None:
    (here / "mine.py").write_text(BREAKS, "utf-8")
    (here / "broken").touch()
    monkeypatch.setenv("BREAK", str(here / "broken"))
    words = ("sweep", "--task", "synthetic", "--opt", "mine.py:Breaks", "--opt.lr", "0.1,1", "--seeds", "1",
             "--device", "cpu", "--trainer.max_steps", "5", "--storage", postgres_url)  # fmt: skip
    name = name_in(cli(*words, "--store", "mine", "--create"))
    refused = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert refused.code == 2
    assert "--opt mine.py:Breaks" in refused.err, "code that a database names is not imported unless the user names it"
    broke = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs", "--opt", "mine.py:Breaks")
    assert broke.code == 1
    assert "too long" in broke.err
    (here / "broken").unlink()
    again = cli(*words, "--store", "mine")
    assert again.code == 0, again.err
    assert len(outcome(here / "mine")) == 2


# -- content that somebody changed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\0", b'{"title": 1}'])
def test_a_damaged_plan_is_one_line_and_its_command_replaces_it(cli, postgres_url, here, text: bytes) -> None:
    words = (*SWEEP, "--store", "mine", "--storage", postgres_url)
    name = name_in(cli(*words, "--create"))
    change(postgres_url, "UPDATE bench_plans SET plan = :text", text=text)
    refused = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert refused.code == 2
    assert len(refused.err.strip().splitlines()) == 1
    assert name_in(cli(*words, "--create")) == name
    assert cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs").code == 0


def test_code_that_a_database_names_is_not_imported(cli, postgres_url, here) -> None:
    (here / "evil.py").write_text("open('imported', 'w').close()\nfrom torch.optim import SGD as Mine\n", "utf-8")
    words = (*SWEEP, "--store", "mine", "--storage", postgres_url)
    name = name_in(cli(*words, "--create"))
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        (text,) = connection.execute(sa.text("SELECT plan FROM bench_plans")).one()
        stored = json.loads(text)
        stored["code"][0]["opt"] = f"{here}/evil.py:Mine"
        stored["common"]["opt"] = f"{here}/evil.py:Mine"
        statement = sa.text("UPDATE bench_plans SET plan = :text")
        connection.execute(statement, {"text": json.dumps(stored).encode()})
    engine.dispose()
    refused = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert refused.code == 2
    assert "imports it only if you name it too" in refused.err
    answer = cli(*words, "--workers", "2")
    assert answer.code == 0, answer.err
    assert not (here / "imported").exists()


def test_damaged_cuts_are_decided_again(cli, postgres_url, here) -> None:
    name = name_in(cli(*SWEEP, "--store", "mine", "--storage", postgres_url, "--create"))
    change(postgres_url, "UPDATE bench_plans SET cuts = :text", text=b'{"cuts": [[')
    answer = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert answer.code == 0, answer.err
    assert len(outcome(here / "theirs")) == 8


def others(folder: Path) -> bytes:
    """Results of a run that nobody asked for."""
    made = pack(Store(folder / "foreign"), [run.run_id for run in Store(folder / "foreign").runs()])
    assert made is not None
    return made


def with_a_study(folder: Path) -> bytes:
    """A zip file with a record that is not of a run."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("runs/studies/mine.json", "{}")
    return packed.getvalue()


@pytest.mark.parametrize("results", [lambda _: b"no zip file", others, with_a_study])
def test_results_that_were_not_requested_are_ignored_and_made_again(
    cli, postgres_url, here, results: Callable[[Path], bytes]
) -> None:
    cli("fit", "--task", "synthetic", "--opt", "gd", "--trainer.max_steps", "2", "--device", "cpu", "--store",
        "foreign")  # fmt: skip
    words = (*SWEEP, "--store", "mine", "--storage", postgres_url)
    name = name_in(cli(*words, "--create"))
    assert cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs").code == 0
    change(postgres_url, "UPDATE bench_blocks SET results = :bytes", bytes=results(here))
    answer = cli(*words)
    assert answer.code == 0, answer.err
    assert cli(*SWEEP, "--store", "alone").code == 0
    assert outcome(here / "mine") == outcome(here / "alone")


def test_a_damaged_store_of_a_worker_is_one_line(cli, postgres_url, here) -> None:
    name = name_in(cli(*SWEEP, "--store", "mine", "--storage", postgres_url, "--create"))
    assert cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs").code == 0
    change(postgres_url, "DELETE FROM bench_blocks")
    table = next(Path("theirs").glob("*/done/curve.parquet"))
    table.write_bytes(b"PAR1" + table.read_bytes()[4:-20] + b"\0" * 16 + b"PAR1")
    answer = cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs")
    assert answer.code == 1
    assert f"move {table.parent.parent} away" in answer.err.splitlines()[-1]
    shutil.rmtree(table.parent.parent)
    assert cli("worker", "--plan", name, "--storage", postgres_url, "--store", "theirs").code == 0


def test_stores_that_have_other_runs_share_the_others(cli, postgres_url, here) -> None:
    def sweep(values: str, store: str, *words: str) -> Any:
        answer = cli(*("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", values, "--seeds", "1", "--device"),
                     "cpu", "--trainer.max_steps", "5", "--engine", "lightning", "--store", store, *words)  # fmt: skip
        assert answer.code == 0, answer.err
        return answer

    sweep("0.1", "first")
    sweep("0.4", "second")
    shared = "--storage", postgres_url
    one, two = (sweep("0.1,0.2,0.4", store, *shared, "--create").out.split()[1] for store in ("first", "second"))
    assert one != two
    assert set(Exchange(postgres_url).claims(one) or {}) == set()
    sweep("0.1,0.2,0.4", "second", *shared)
    sweep("0.1,0.2,0.4", "first", *shared)
    sweep("0.1,0.2,0.4", "alone")
    assert outcome(here / "first") == outcome(here / "second") == outcome(here / "alone")


def test_a_shared_plan_is_not_trained_without_its_database(cli, postgres_url, here) -> None:
    name = name_in(cli(*SWEEP, "--store", "mine", "--storage", postgres_url, "--create"))
    refused = cli("worker", "--plan", name, "--store", "mine")
    assert (refused.code, "is shared through a database; name it with --storage" in refused.err) == (2, True)


def test_a_plan_of_the_store_needs_no_database(cli, here, monkeypatch) -> None:
    monkeypatch.setenv("BENCH_STORAGE", "postgresql+psycopg://a:b@127.0.0.1:1/x")
    name = name_in(cli(*SWEEP, "--store", "mine", "--create"))
    assert cli("worker", "--plan", name, "--store", "mine").code == 0


def test_permanent_failures_are_reported_at_once(postgres_url, here) -> None:
    change(postgres_url, "CREATE TABLE bench_plans (name TEXT PRIMARY KEY)")
    with pytest.raises(RunFailed, match="change that, or name another database"):
        Exchange(postgres_url).shared(plan(here))


@pytest.mark.parametrize("pid", [2**70, -1, "x", None])
def test_a_worker_that_cannot_be_is_dead(postgres_url, here, pid: object) -> None:
    exchange = Exchange(postgres_url)
    shared = exchange.shared(plan(here))
    assert shared is not None
    claim = BlockClaim(json.dumps(this_process() | {"pid": pid}), 0, ended=False, failure=None)
    values = {"plan": shared.name, "worker": claim.worker}
    change(postgres_url, "INSERT INTO bench_blocks VALUES (:plan, 'b', :worker, 0, false)", **values)
    assert exchange.take(shared.name, ["b"], {"b": claim}) == "b"


def test_sqlite_and_slurm_share_a_store_instead(cli, here) -> None:
    refused = cli(*SWEEP, "--storage", "sqlite:///studies.db")
    assert (refused.code, "a common --store is enough" in refused.err) == (2, True)
    refused = cli(*SWEEP, "--storage", "postgresql+psycopg://a:b@localhost:1/x", "--slurm")
    assert (refused.code, "remove --storage" in refused.err) == (2, True)
    assert list(here.iterdir()) == []


# -- claims -----------------------------------------------------------------------------------------------------------


def test_each_block_is_claimed_once(postgres_url, here) -> None:
    blocks = [f"block-{n}" for n in range(20)]
    own = [Exchange(postgres_url) for _ in range(4)]
    shared = own[0].shared(plan(here))
    assert shared is not None

    def take_all(n: int) -> list[str]:
        own[n]._me = json.dumps({"pid": n + 1, "started": None, "host": f"machine {n}"})
        taken: list[str] = []
        while (block := own[n].take(shared.name, blocks[len(taken) :] + blocks[: len(taken)], {})) is not None:
            taken.append(block)
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = [block for own_blocks in threads.map(take_all, range(4)) for block in own_blocks]
    assert sorted(taken) == sorted(blocks)


def test_a_silent_worker_loses_its_block(postgres_url, here) -> None:
    silent, watcher = Exchange(postgres_url, heartbeat=1), Exchange(postgres_url, heartbeat=1)
    silent._me = json.dumps(this_process() | {"host": "another machine"})
    shared = silent.shared(plan(here))
    assert shared is not None

    def taken() -> str | None:
        claims = watcher.claims(shared.name)
        assert claims is not None
        return watcher.take(shared.name, ["b"], claims)

    assert silent.take(shared.name, ["b"], {}) == "b"
    with silent.held(shared.name, "b"):
        assert taken() is None
        until(lambda: (watcher.claims(shared.name) or {})["b"].beat >= 6, "it sends heartbeats")
        assert taken() is None
    until(lambda: taken() == "b", "its block is free")
    assert not silent.end(shared, "b", [], None), "its results come too late"
    assert watcher.end(shared, "b", [], "a reason")
    assert (watcher.claims(shared.name) or {})["b"] == BlockClaim(watcher._me, 0, ended=True, failure="a reason")


def test_a_removed_plan_ends_the_work(postgres_url, here) -> None:
    exchange = Exchange(postgres_url)
    shared = exchange.shared(plan(here))
    assert shared is not None
    assert exchange.take(shared.name, ["b"], {}) == "b"
    change(postgres_url, "DELETE FROM bench_plans")
    assert exchange.claims(shared.name) is None
    assert exchange.take(shared.name, ["c"], {}) is None
    assert not exchange.end(shared, "b", [], None)
