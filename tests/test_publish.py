"""What `make publish` ships and writes."""

from dataclasses import replace
from pathlib import Path

import yaml

from bench.store.block import CURVE_FIELDS
from bench.store.stores import Stores
from tests.entered import collect_from, seeds
from tests.stored import add_study, put
from tools import publish, thinning

CURVE = {"step": [1, 100], **{name: [1.0, 0.5] for name in CURVE_FIELDS[1:]}}


def test_a_thinned_store_keeps_results_and_some_rows_of_curves(tmp_path: Path) -> None:
    steps = [float(step) for step in range(1, 31)]
    tables = {"curve": dict.fromkeys(CURVE_FIELDS, steps), "measurements": {"step": steps, "norm": steps}}
    runs = [replace(run, steps=30) for run in seeds("ngd", [0.5, 0.6])]
    put(tmp_path / "whole", *runs, tables={name: {run.run_id: own for run in runs} for name, own in tables.items()})
    trial = {"point": {"lr": 0.1}, "score": 0.5, "runs": [runs[0].run_id]}
    add_study(tmp_path / "whole", "s", [trial], winner=runs[0].run_id)
    whole = Stores([tmp_path / "whole"])
    assert thinning.copy(whole, whole.runs, tmp_path / "thin", points=10)
    thin = Stores([tmp_path / "thin"])
    assert [study.name for study in thin.studies] == ["s"]
    assert [(run.run_id, run.final, run.thinned) for run in thin.runs] == [
        (run.run_id, run.final, True) for run in runs
    ]
    curves = [thin.tables(run.run_id)["curve"]["step"].tolist() for run in runs]
    assert curves[0] == [1, 30]
    assert [curves[1][0], curves[1][-1]] == [1, 30]
    assert len(curves[1]) <= 10
    measured = [len(thin.tables(run.run_id).get("measurements", {}).get("step", ())) for run in runs]
    assert measured == [0, 8]  # evenly and log-spaced rows coincide


def test_the_readme_has_findings_and_a_mark_for_each_verdict(tmp_path: Path) -> None:
    accuracies = {"adamw": 0.8, "adam": 0.8, "muon": 0.9, "sgd": 0.7}
    runs = [
        run
        for task in ("mnist", "cifar10")
        for opt, accuracy in accuracies.items()
        for run in seeds(opt, [accuracy + 0.001 * i for i in range(7)], task=task)
    ]
    runs += seeds("sngd", [0.99] * 3)
    put(tmp_path, *runs, tables={"curve": {run.run_id: CURVE for run in runs}})
    lines = publish.text(collect_from(tmp_path)).splitlines()
    assert lines[:2] == ["* Muon beats AdamW on 2 of 2 vision tasks.", "* SGD loses to AdamW on 2 of 2 vision tasks."]
    cells = dict(line.removeprefix("| ").split(" | ", 1) for line in lines if line.startswith("| "))
    assert cells == cells | {"muon": "▲ | ▲ |", "sgd": "▼ | ▼ |", "adam": "≈ | ≈ |", "sngd": "- | ? |"}
    table = publish._by_optimizer(publish._columns(collect_from(tmp_path)), values=True)
    assert "| muon | 0.903 [0.901, 0.905] ▲ | 0.903 [0.901, 0.905] ▲ |" in table
    assert [panel.title for panel in publish.figure(collect_from(tmp_path)).panels] == ["cifar10, max_steps 100"]


def test_tuned_files_flag_the_edges_that_boards_flag() -> None:
    root = Path(__file__).parents[1]
    studies = {study.name: study for study in Stores([root / "results" / "reference" / "runs"]).studies}
    origins = [yaml.safe_load(path.read_text("utf-8"))["provenance"] for path in root.glob("configs/tuned/*/*.yaml")]
    shipped = [origin for origin in origins if origin["study"] in studies and "edge" in origin]  # newer ones have none
    assert len(shipped) > 10
    assert all(origin["edge"] == bool(studies[origin["study"]].edges) for origin in shipped)
