"""Results of runs without times and plans: equal bit for bit, however often the runs were interrupted."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.stored import Store, unfinished

CLOCKS = ("wall_s", "train_s", "seconds_to_target", "memory", "begun", "plan")


def outcome(store: Path) -> dict[str, Any]:
    """Records and tables of a store's runs, by id. Values are given as bytes, since NaN is not equal to NaN."""
    found = {}
    for run in Store(store).runs():
        kept = {name: value for name, value in asdict(run).items() if name not in CLOCKS}
        kept["validations"] = [{k: v for k, v in row.items() if k != "train_s"} for row in run.validations]
        kept["config"] = {**run.config, "trainer": run.config["trainer"] | {"checkpoint_seconds": None}}
        tables = Store(store).tables(run.run_id)
        own = {name: {k: v.tobytes() for k, v in table.items()} for name, table in tables.items()}
        found[run.run_id] = kept, own
    return found


def leftovers(store: Path) -> list[str]:
    """What a store holds besides finished blocks: unfinished and damaged ones, hidden and temporary files.

    What remains beside results does not count: a process killed just after the end cannot remove it.
    """
    odd = [path for path in store.iterdir() if path.name.startswith(".") or path.name == "cuts"]
    odd += [path for path in store.glob("*/done/*") if path.name[0] == "." or path.suffix == ".tmp"]
    return sorted(map(str, [*odd, *unfinished(store), *Store(store).contents().damaged]))
