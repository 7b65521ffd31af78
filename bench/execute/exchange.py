"""Runs shared by machines without a common file system: a PostgreSQL database carries plans, claims and results.

    bench_plans     one row per plan: its runs (`plan.json`), and their division into blocks (`cuts.json`)
    bench_blocks    one row per block that a worker has claimed: the worker, its heartbeats, in the end the results

Each machine trains in its own store. Commands that ask for the runs merge the results into theirs. Every change is a
single statement, so a process may be killed at any time. What is read is checked like a received store.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
import sqlalchemy.exc
from sqlalchemy.dialects.postgresql import insert

from bench.errors import RunFailed, UserError
from bench.execute.cuts import Cut, parts, recorded_cuts
from bench.execute.database import HEARTBEAT_SECONDS, Database, Heartbeats, StoredProcess, beating
from bench.execute.plan import CUTS, PLAN, Plan, Stored
from bench.machine import this_process
from bench.output import note
from bench.store.block import PLANS
from bench.store.bundle import pack, unpacked
from bench.store.files import making, refuse_links, replacing
from bench.store.load import Damaged, parse
from bench.store.merge import merge
from bench.store.record import is_file_name
from bench.store.store import Store
from bench.text import clean

KEPT_DAYS = 30
"""Days after the last results of a plan for which the database keeps it; then the next command removes it. Ours."""
SHARED = ".shared"
"""Marks the copy of a plan in a store: only the database knows which blocks are left to do."""
_TABLES = sa.MetaData()
_PLANS = sa.Table(
    "bench_plans",
    _TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("plan", sa.LargeBinary, nullable=False),
    sa.Column("cuts", sa.LargeBinary),
    sa.Column("used", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
_BLOCKS = sa.Table(
    "bench_blocks",
    _TABLES,
    sa.Column("plan", sa.ForeignKey(_PLANS.c.name, ondelete="CASCADE"), primary_key=True),
    sa.Column("block", sa.Text, primary_key=True),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("beat", sa.Integer, nullable=False, default=0),
    sa.Column("ended", sa.Boolean, nullable=False, default=False),
    sa.Column("results", sa.LargeBinary),
    sa.Column("failure", sa.Text),
)


class BlockClaim(NamedTuple):
    """A block that a worker has taken.

    Attributes:
        worker: the process, as JSON.
        beat: number of its last heartbeat.
        ended: whether it has ended, with results, a failure, or both.
        failure: why runs failed, if any did.
    """

    worker: str
    beat: int
    ended: bool
    failure: str | None


class Exchange(Database):
    """Plans in a PostgreSQL database.

    Args:
        url: `postgresql+psycopg://user:password@host/database`.
        gather: merge results of other workers into the plan's store.
        heartbeat: seconds between heartbeats of a worker.

    Raises:
        UserError: the URL is not one of PostgreSQL, or its driver is missing.
        RunFailed: the server does not respond.
    """

    def __init__(self, url: str | sa.URL, *, gather: bool = False, heartbeat: int = HEARTBEAT_SECONDS) -> None:
        if not str(url).startswith("postgresql"):
            raise UserError(
                "--storage: runs travel between machines through PostgreSQL (postgresql+psycopg://USER:PASSWORD@HOST/"
                "NAME); on one machine, or with a common file system, a common --store is enough"
            )
        super().__init__(url, heartbeat)
        self.gather = gather
        self._heartbeats = Heartbeats(heartbeat)
        self._me = json.dumps(this_process())

    def _prepare(self) -> None:
        with self.lock():  # two processes at once would fail
            _TABLES.create_all(self._engine)

    # -- plans --------------------------------------------------------------------------------------------------------

    def shared(self, plan: Plan) -> Plan | None:
        """The plan that all machines share for these runs, created if needed; None if all are stored.

        First merges results of other machines, and lets failed blocks be tried again. A plan without open blocks that
        left runs missing is replaced. A new plan contains the runs that the store lacks.

        Raises:
            UserError: the store cannot be written.
            RunFailed: the database does not respond, or the disk is full.
        """
        self._change(sa.delete(_PLANS).where(_PLANS.c.used < sa.func.now() - timedelta(days=KEPT_DAYS)))
        open_plans = []
        for there in self._found(plan):
            self._bring_cuts(there)
            blocks, claims = parts(recorded_cuts(there)), self.claims(there.name) or {}
            ended = {name: block for name, block in blocks.items() if name in claims and claims[name].ended}
            for wrong in self.collect(there, ended):
                note(wrong)
            self._change(sa.delete(_BLOCKS).where(_BLOCKS.c.plan == there.name, _BLOCKS.c.failure.is_not(None)))
            if not blocks or any(claims[name].failure for name in ended) or len(ended) < len(blocks):
                open_plans.append(there)
        missing = plan.missing()
        if not missing:
            return None
        for there in open_plans:
            if missing.keys() <= there.by_id.keys():
                return self._kept(there)
        new = replace(plan, configs=list(missing.values()))
        self._change(sa.delete(_PLANS).where(_PLANS.c.name == new.name))  # it is damaged, or its results are
        values = {"key": _key(plan), "name": new.name, "plan": json.dumps(new.as_stored()).encode()}
        self._change(insert(_PLANS).values(values).on_conflict_do_nothing())
        for there in self._found(new):
            if there.name == new.name:
                return self._kept(there)
        raise RunFailed(f"{self.asked}: another process changed plan {new.name}; repeat the command")

    def _found(self, plan: Plan) -> list[Plan]:
        """The valid plans for these runs, or for those that its store lacks, with their own configurations."""
        key, lacking = _key(plan), replace(plan, configs=list(plan.missing().values() or plan.configs))
        found = []
        for name, text in self._select(
            sa.select(_PLANS.c.name, _PLANS.c.plan).where((_PLANS.c.key == key) | (_PLANS.c.name == lacking.name))
        ):
            with suppress(Damaged):
                stored = parse(_bytes(text), Stored, Path(f"plan {name}"))
                if stored["runs"].keys() <= plan.by_id.keys():
                    runs = [plan.by_id[run_id] for run_id in stored["runs"]]
                    own = replace(plan, configs=runs, shares=stored["shares"], exchange=self)
                    found += [own] if own.name == name else []
        return found

    def _kept(self, plan: Plan) -> Plan:
        """Write a shared plan into its store, for the workers of this machine."""
        plan.keep()
        _write(plan.store.folder, {plan.folder / SHARED: b""})
        return plan

    def bring(self, name: str, store: Path) -> None:
        """Write a plan into a store, where `bench.execute.plan.load` checks it.

        Raises:
            UserError: there is no such plan, or the store cannot be written.
            RunFailed: the disk is full.
        """
        found = self._select(sa.select(_PLANS.c.plan, _PLANS.c.cuts).where(_PLANS.c.name == name))
        if not found or not is_file_name(name):
            there = ", ".join(each for (each,) in self._select(sa.select(_PLANS.c.name))) or "none"
            raise UserError(f"there is no plan {name!r} in {self.shown}; existing plans: {there}")
        (text, cuts), folder = found[0], store / PLANS / name
        _write(store, {folder / SHARED: b"", folder / PLAN: text, folder / CUTS: cuts})

    def _bring_cuts(self, plan: Plan) -> bool:
        """Write the cuts of a plan into its store, if they are decided; False if the plan was removed."""
        found = self._select(sa.select(_PLANS.c.cuts).where(_PLANS.c.name == plan.name))
        if found:
            _write(plan.store.folder, {plan.folder / CUTS: found[0].cuts})
        return bool(found)

    def agreed(self, plan: Plan, cuts: Sequence[Cut]) -> list[Cut]:
        """The cuts of a plan that all machines use: of several decisions, the first one holds.

        Raises:
            UserError: the store cannot be written.
            RunFailed: the disk is full, or another process keeps damaging the decision.
        """
        path, row = plan.folder / CUTS, _PLANS.c.name == plan.name
        if not path.exists():  # a single run, or a stop request
            return list(cuts)
        mine = path.read_bytes()
        for _ in range(2):
            self._change(sa.update(_PLANS).where(row, _PLANS.c.cuts.is_(None)).values(cuts=mine))
            if not self._bring_cuts(plan):
                return []  # the command that asked has all results
            if found := recorded_cuts(plan):
                return found
            self._change(sa.update(_PLANS).where(row).values(cuts=None))  # it is damaged
        raise RunFailed(f"{self.asked}: plan {plan.name} cannot be divided into blocks; repeat the original command")

    # -- blocks -------------------------------------------------------------------------------------------------------

    def claims(self, plan: str) -> dict[str, BlockClaim] | None:
        """The claimed blocks of a plan by name; None if the plan is finished and removed."""
        there = _BLOCKS.c
        rows = self._select(
            sa.select(there.block, there.worker, there.beat, there.ended, there.failure).where(there.plan == plan)
        )
        if not rows and not self._select(sa.select(_PLANS.c.name).where(_PLANS.c.name == plan)):
            return None
        return {
            block: BlockClaim(worker, beat, ended, failure and clean(failure))
            for block, worker, beat, ended, failure in rows
        }

    def take(self, plan: str, blocks: Iterable[str], claims: Mapping[str, BlockClaim]) -> str | None:
        """Claim the first of these blocks that is free, or whose worker is dead; None if there is none."""
        for block in blocks:
            claim = claims.get(block)
            values = {"plan": plan, "block": block, "worker": self._me, "beat": 0}
            if claim is None:
                mine = self._change(insert(_BLOCKS).values(values).on_conflict_do_nothing())
            elif claim.worker == self._me:  # the database failed just after this process had claimed it
                mine = True
            elif self._is_dead(plan, block, claim):
                same = (_BLOCKS.c.worker == claim.worker, _BLOCKS.c.beat == claim.beat)
                mine = self._change(sa.update(_BLOCKS).where(*_open(plan, block), *same).values(values))
            else:
                mine = False
            if mine:
                return block
        return None

    def _is_dead(self, plan: str, block: str, claim: BlockClaim) -> bool:
        try:
            worker = parse(claim.worker.encode(), StoredProcess, Path(f"block {block}"))
        except Damaged:
            return True
        return self._heartbeats.why_dead((plan, block), worker, claim.beat) is not None

    @contextmanager
    def held(self, plan: str, block: str) -> Iterator[None]:
        """Send heartbeats for a claimed block while the context lasts; then release it, unless it has ended.

        If the database is unavailable then, others find after a while that the block has no heartbeats.
        """

        def beat(count: int) -> None:
            with self._engine.begin() as connection:
                connection.execute(self._update(plan, block, {"beat": count}))

        try:
            with beating(self.heartbeat, beat):
                yield
        finally:
            with suppress(UserError), self.errors(), self._engine.begin() as connection:
                connection.execute(sa.delete(_BLOCKS).where(*_open(plan, block), _BLOCKS.c.worker == self._me))

    def end(self, plan: Plan, block: str, run_ids: Iterable[str], failure: str | None) -> bool:
        """End a claimed block and send its finished runs; False if its worker was presumed dead, or the plan removed.

        Raises:
            RunFailed: a table is damaged, or the database does not respond.
        """
        try:
            results = pack(plan.store, run_ids)
        except Damaged as error:
            run = error.path.parent.parent
            raise RunFailed(f"{error}; move {run} away, and the same command trains its runs again") from None
        values = {"ended": True, "results": results, "failure": failure}
        self._change(sa.update(_PLANS).where(_PLANS.c.name == plan.name).values(used=sa.func.now()))
        return self._change(self._update(plan.name, block, values))

    def collect(self, plan: Plan, blocks: Mapping[str, Cut]) -> list[str]:
        """Merge the results of ended blocks into the plan's store, unless it has them; what is wrong with results.

        Raises:
            UserError: the store cannot be written.
            RunFailed: the disk is full, or the database does not respond.
        """
        wrong: list[Damaged] = []
        for name, block in blocks.items():
            run_ids = {config.run_id for config in block.runs}
            if plan.store.finished_all(run_ids).keys() == run_ids:
                continue
            of = _BLOCKS.c.plan == plan.name, _BLOCKS.c.block == name, _BLOCKS.c.results.is_not(None)
            for (results,) in self._select(sa.select(_BLOCKS.c.results).where(*of)):
                try:
                    with unpacked(results, f"block {name}") as folder:
                        if foreign := Store(folder).contents().runs.keys() - run_ids:
                            raise Damaged(Path(name), f"it contains {min(foreign)}, which was not requested")
                        wrong += merge([folder], plan.store.folder, lambda _: None).damaged
                except Damaged as error:
                    wrong.append(error)
        return [f"results in {self.shown} are ignored: {error}" for error in wrong]

    def _update(self, plan: str, block: str, values: dict[str, Any]) -> sa.Update:
        """A change of a block that this process has claimed."""
        return sa.update(_BLOCKS).where(*_open(plan, block), _BLOCKS.c.worker == self._me).values(values)

    def _select(self, statement: sa.Executable) -> list[Any]:
        def select() -> list[Any]:
            with self._engine.connect() as connection:
                return list(connection.execute(statement).all())

        return self.insist(select, locked=False)

    def _change(self, statement: sa.Executable) -> bool:
        """Whether a statement changed a row. A claim of a removed plan changes none."""

        def change() -> bool:
            try:
                with self._engine.begin() as connection:  # by default, an insert that did nothing counts as -1 rows
                    counted = connection.execution_options(preserve_rowcount=True)
                    return counted.execute(statement).rowcount > 0
            except sqlalchemy.exc.IntegrityError:
                return False

        return self.insist(change, locked=False)


def _open(plan: str, block: str) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions of a block that has not ended."""
    return _BLOCKS.c.plan == plan, _BLOCKS.c.block == block, sa.not_(_BLOCKS.c.ended)


def _write(store: Path, files: Mapping[Path, object]) -> None:
    """Write files of a plan into a store, except those without content.

    Raises:
        UserError: the store cannot be written, or has a link at this path.
        RunFailed: the disk is full.
    """
    with making(store):
        for path, text in files.items():
            refuse_links(path.parent.parent, path.parent)
            if text is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    temporary.write_bytes(_bytes(text))


def _bytes(value: object) -> bytes:
    """A value of the database; the column may have another type there."""
    return value if isinstance(value, bytes) else str(value).encode()


def _key(plan: Plan) -> str:
    """Identifies the runs and how they were requested."""
    asked = json.dumps([sorted(plan.by_id), plan.engine, plan.width])
    return hashlib.sha256(asked.encode()).hexdigest()
