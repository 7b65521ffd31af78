"""Charts as numbers and in print: means, bands and step functions against other implementations; printable figures."""

import math
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
from PIL import Image
from scipy.stats import beta, t

from bench.boards.collect import Collected, collect
from bench.cli import dispatch as results
from bench.errors import UserError
from bench.plots.charts import CHARTS, profile, sensitivity
from bench.plots.curves import curves
from bench.plots.forest import Effects, forest
from bench.plots.means import MOST_POINTS
from bench.plots.panels import Line, Panel
from bench.plots.theme import looks
from bench.store.stores import Stores
from bench.text import CONVERGED
from optimizers import OPTIMIZERS
from tests.entered import keep, make_run, rows, seeds, study
from tests.stored import put

HOSTILE = "ev_il$x^$ <script>alert(1)</script> \"q\" 'a' [/bold] ü 漢 %{x} <b>"
"""A malicious name for a page, a formula and a terminal."""
SVG = "{http://www.w3.org/2000/svg}"


def add_run(
    store: Path,
    task: str = "mnist",
    opt: str = "sgd",
    seed: int = 0,
    loss: Any = (0.5, 0.25),
    more: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    words: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Write a run as training would, with this loss at steps 1, 2, ..., and `more` columns of its curve."""
    final = {"mnist": 0.5, "cifar10": 0.5}.get(task, 0.25) + 0.01 * seed
    known = opt if opt.isidentifier() else "sgd"
    run = make_run(known, seed, final, task=task, name=None if opt == known else opt, words=words)
    values: dict[str, Any] = {"best_step": len(loss), "steps": len(loss), "train_s": 0.0}
    if (end := changes.get("final", final)) is not None:
        values["metrics"] = {"final": {run.metric: end}}
    run = replace(run, **(values | changes))
    columns: dict[str, Any] = {"step": range(1, len(loss) + 1), "loss": loss}
    for name in ("grad_norm", "raw_step", "applied_step"):
        columns[name] = (more or {}).get(name, [0.1] * len(loss))
    tables = {"curve": {run.run_id: columns}} | ({} if measured is None else {"measurements": {run.run_id: measured}})
    put(store, run, tables=tables)
    return run.run_id


def collect_all(store: Path, target: float | None = None, **options: Any) -> Collected:
    return collect(Stores([store]), target=target, **options)


def trace(chart: Panel, name: str) -> Line:
    (line,) = (line for line in chart.lines if line.name == name)
    return line


def words(chart: Panel) -> str:
    return "\n".join(chart.notes)


# -- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "log"), [([[2.0, 1.5], [2.5, 1.0], [3.0, 2.0]], ""), ([[1.0, 1e-3], [1.0, 1e-5], [2.0, 1e-4]], "y")]
)
def test_a_curve_is_the_mean_with_its_t_interval(store, losses, log):
    for seed, loss in enumerate(losses):
        add_run(store, seed=seed, loss=loss)
    (chart,) = curves(collect_all(store)).panels
    line = trace(chart, "sgd")
    assert (chart.log, line.x.tolist()) == (log, [1, 2])
    to, back = (np.log, np.exp) if log else (np.asarray, np.asarray)
    mean, deviation = to(losses).mean(0), to(losses).std(0, ddof=1)
    np.testing.assert_allclose(line.y, back(mean))
    np.testing.assert_allclose((line.low, line.high), back(t.interval(0.95, 2, mean, deviation / math.sqrt(3))))
    assert f"lines: {'geometric ' * bool(log)}mean over 3 seeds" in words(chart)


def test_a_curve_ends_with_the_first_seed_that_diverged(store):
    for seed in range(3):
        add_run(store, seed=seed, loss=[1.0, 0.9, 0.8, 0.7])
    add_run(store, seed=3, loss=[1.0, 9.0, float("nan")], status="diverged", final=None)
    (chart,) = curves(collect_all(store)).panels
    assert trace(chart, "sgd").x.tolist() == [1, 2]
    assert "sgd is drawn up to step 2: later steps lack values of some runs" in words(chart)


@pytest.mark.parametrize("task", ["mnist", "synthetic"])
def test_long_curves_are_thinned_and_keep_their_ends(store, task):
    add_run(store, task, loss=np.linspace(3, 2, 5000))
    (chart,) = curves(collect_all(store)).panels
    x = chart.lines[0].x
    assert len(x) <= MOST_POINTS
    assert (x[0], x[-1]) == (1, 5000)
    assert len(np.unique(x)) == len(x) > MOST_POINTS / 2
    gaps = np.diff(np.log(x[x > 200]) if "x" in chart.log else x)
    assert gaps.max() < 2.5 * gaps.min()


def test_a_loss_is_drawn_as_a_clipped_suboptimality_gap(store):
    for seed in range(3):
        add_run(store, "synthetic", seed=seed, loss=[1.25, 0.26, 0.25], facts={"f_star": 0.25})
    (chart,) = curves(collect_all(store)).panels
    np.testing.assert_allclose(trace(chart, "sgd").y, [1, 0.01, CONVERGED])
    assert chart.y == "training loss (suboptimality gap)"
    assert "losses below 1e-16 are drawn at that value" in words(chart)


@pytest.mark.parametrize(("losses", "shown"), [([2.0, 1e30, 1e35], True), ([2.0, 19.0], False)])
@pytest.mark.parametrize("n", [1, 3])
def test_an_exploding_run_is_cut_off_and_named(store, losses, shown, n):
    for seed in range(n):
        add_run(store, opt="sgd", seed=seed, loss=losses)
        add_run(store, opt="adam", seed=seed, loss=[2.0, 1.0, 0.5])
    (chart,) = curves(collect_all(store)).panels
    assert ("cut off above 20, 10 times the highest initial value: sgd" in chart.notes) == shown
    assert trace(chart, "sgd").y.max() == pytest.approx(losses[-1])  # the data stay
    assert chart.limits is not None
    assert chart.limits[0] <= 0.5
    assert (chart.limits[1] < 30) == shown or not shown


# -- studies --------------------------------------------------------------------------------------------------------


def tuned(store: Path, scores: dict[float, float | None], **changes: Any) -> Collected:
    winner = add_run(store, seed=1000)
    for seed in range(3):
        add_run(store, seed=seed)
    study(store, scores, {}, winner, opt="sgd", **changes)
    return collect_all(store)


def test_sensitivity_shows_each_trial_and_names_those_without_a_score(store):
    (chart,) = sensitivity(tuned(store, {1.0: 0.5, 0.1: 0.75, 10.0: None, 0.01: 0.25})).panels
    line = trace(chart, "sgd")
    assert line.x.tolist() == [0.01, 0.1, 1]
    assert line.y.tolist() == [0.25, 0.75, 0.5]
    assert chart.marks
    assert (chart.x, chart.y, chart.log) == ("opt.lr", "selection accuracy", "x")
    assert "sgd: no score at opt.lr 10" in words(chart)
    assert "its tuning seeds (2)" in words(chart)


# -- targets --------------------------------------------------------------------------------------------------------


def test_a_profile_shows_shares_with_exact_intervals(store):
    for seed, at in enumerate((25, 50, 50, None)):
        add_run(store, seed=seed, steps=80, steps_to_target=at)  # all stopped early
    (chart,) = profile(collect_all(store)).panels
    line = trace(chart, "sgd")
    assert line.x.tolist() == [0, 0.25, 0.25, 0.5, 0.5, 1]
    assert line.y.tolist() == [0, 0, 0.25, 0.25, 0.75, 0.75]
    assert line.low is not None
    low = [0.0, beta.ppf(0.025, 1, 4), beta.ppf(0.025, 3, 2)]
    high = [beta.ppf(0.975, k + 1, 4 - k) for k in (0, 1, 3)]
    np.testing.assert_allclose((line.low, line.high), [np.repeat(low, 2), np.repeat(high, 2)])
    assert chart.limits == (-0.03, 1.03)
    assert "budget: 100 steps" in words(chart)


# -- effects --------------------------------------------------------------------------------------------------------


def test_the_forest_shows_effects_and_verdicts_of_the_board(store):
    ends = [0.5 + 0.01 * seed for seed in range(8)]
    gains = {"sgd": -0.2, "adam": 0.1, "sngd": 0.0}
    keep(store, *seeds("adamw", ends), *seeds("sps", [None] * 7))
    keep(store, *seeds("sgd", [0.6, 0.6], name="few"), *seeds("sgd", ends, 9, name="late"))
    for opt, gain in gains.items():
        keep(store, *seeds(opt, [x + gain + (-1) ** i * 0.01 * i for i, x in enumerate(ends)]))
    chart = effects(store)
    board = rows("quality", store, reference=None)
    drawn = {row["name"]: row for row in chart.rows()}
    assert [*drawn] == [opt for opt in board if opt in {*gains, "few"}]
    for name, row in drawn.items():
        effect, verdict = board[name]["effect"], board[name]["verdict"]
        assert (row["row"], row["x"]) == (f"{name}: {verdict}", pytest.approx(effect.mean))
        assert row["decided"] == (verdict in ("better", "worse"))
        bar = None if name == "few" else pytest.approx((effect.low, effect.high))
        assert (None if "low" not in row else (row["low"], row["high"])) == bar
    assert [name for name, row in drawn.items() if row["decided"]] == ["adam", "sgd"]
    assert "sps: worse; too many runs have no value for a median" in chart.notes
    assert "late: no common seeds" in chart.notes
    assert "none below 7 seeds" in words(chart)
    assert (chart.log, chart.none) == ("", 0)
    assert chart.x == "test accuracy: gain over adamw (default); positive is better"


def effects(store: Path) -> Effects:
    (chart,) = forest(collect_all(store)).panels
    assert isinstance(chart, Effects)
    return chart


# -- all of them ----------------------------------------------------------------------------------------------------


def everything(store: Path) -> Collected:
    """Two problems, hostile names, studies, a diverged run, and extreme numbers."""
    draw = np.random.default_rng(0)
    for opt in ("sgd", "sps", HOSTILE):
        winner = add_run(store, "mnist", opt, seed=1000, words={"trainer.max_steps": 300})
        for seed in range(4):
            loss = 3 * np.exp(-np.arange(300) / 60) + 0.02 * draw.random(300)
            raw = 5 * np.exp(draw.normal(size=300))
            loss[7] = [1e308, math.nan, 0.0, 1e-300][seed]
            steps = {"more": {"raw_step": raw, "applied_step": np.minimum(raw, 4)}, "words": {"trainer.max_steps": 300}}
            ended = {"steps": 300, "steps_to_target": 50 * (seed + 1), "cap_share": 0.5}
            add_run(store, "mnist", opt, seed, loss, **steps, **ended)
            known = {"facts": {"f_star": 0.25}, "measured": {"step": [0, 20], "alignment": [0.0, 1.0]}}
            add_run(store, "synthetic", opt, seed, 0.25 + np.exp(-np.arange(300.0)), **known)
        scores = {10.0**k: 0.9 - 0.1 * abs(k) for k in range(-4, 3)} | {100.0: None}
        study(store, scores, {}, winner, name=f"of-{opt.isidentifier() and opt}", opt=opt)
    add_run(store, "mnist", "adam", 0, [2.0, 9.0], words={"trainer.max_steps": 300}, status="diverged", final=None)
    return collect_all(store, settings="all", reference="sgd")


EMPTY = ("attention",)
"""Charts of observed runs, which these tests lack."""


@pytest.mark.parametrize("kind", CHARTS)
def test_every_chart_is_drawable_and_has_a_note(store, kind):
    charts = CHARTS[kind](everything(store)).panels
    assert len(charts) >= 1 + (kind not in EMPTY)
    for chart in charts:
        assert words(chart)
        for line in chart.lines:
            for values, axis in ((line.x, "x"), (line.y, "y"), (line.low, "y"), (line.high, "y")):
                if values is None or kind == "forest":
                    continue
                assert len(values) == len(line.x)
                assert np.isfinite(values).all()
                assert axis not in chart.log or (values > 0).all()


def test_the_readers_own_optimizers_are_first_solid_and_strong(store):
    chart = curves(everything(store))
    name, look = next(iter(chart.styles.items()))
    assert (name, look.dash, look.width) == (HOSTILE, [1, 0], 3)
    assert {other.width for key, other in chart.styles.items() if key != HOSTILE} == {1.6}


@pytest.mark.parametrize(
    ("words", "at", "y"),
    [
        ({"column": "val_accuracy"}, [10, 20], [0.55, 0.75]),
        ({"column": "accuracy", "x": "seconds"}, [1.5, 3.5], [0.55, 0.75]),
        ({"column": "accuracy", "x": "epochs"}, [1, 2], [0.55, 0.75]),
    ],
)
def test_evaluations_are_drawn_against_steps_seconds_and_epochs(store, words, at, y):
    for seed in range(3):
        spread = 0.1 * (seed - 1)
        more = {"steps": 20, "words": {"trainer.max_epochs": 2}, "train_s": 3.5 + seed - 1}
        values = [(10, 1.5 + seed - 1, 0.55), (20, 3.5 + seed - 1, 0.75)]
        checks = [{"step": s, "train_s": t, "loss": 1.0, "accuracy": a + spread} for s, t, a in values]
        add_run(store, seed=seed, validations=checks, **more)
    add_run(store, task="cifar10")
    chart, other = sorted(curves(collect_all(store), **words).panels, key=lambda panel: not panel.lines)
    line = trace(chart, "sgd")
    np.testing.assert_allclose((line.x, line.y), (at, y))
    assert "no run has such values" in other.notes or "x" in words
    assert "accuracy" in chart.y


# -- on paper -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".png", ".pdf", ".svg", ".html"])
def test_a_figure_is_the_same_every_time_and_names_are_escaped(store, ending):
    chart = profile(everything(store))
    drawn = chart.picture(ending)
    if ending == ".pdf":
        assert drawn.startswith(b"%PDF")
    elif ending != ".svg":  # in which Vega counts all charts of the process
        assert drawn == chart.picture(ending)
    if ending == ".png":
        with Image.open(BytesIO(drawn)) as image:
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
            assert image.width > 800
    assert b"<script>alert" not in drawn
    if ending == ".svg":
        texts = ["".join(text.itertext()) for text in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
        assert any("<script>alert(1)</script>" in text for text in texts)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [kind for kind in CHARTS if kind not in EMPTY])
def test_every_figure_is_valid_vega_lite(store, kind):
    alt.Chart.from_dict(CHARTS[kind](everything(store)).spec(), validate=True)


def test_an_optimizer_has_its_colour_and_dash_whoever_else_is_drawn():
    alone = {opt: looks({opt: opt})[opt] for opt in OPTIMIZERS}
    assert len({look.color for look in alone.values()}) == len({str(look.dash) for look in alone.values()})
    assert len({look.color for look in alone.values()}) == len(OPTIMIZERS)
    several = looks({"adam": "adam", "sgd a": "sgd", "sgd b": "sgd", "sgd c": "sgd", "ngd": "ngd", "other": "other"})
    assert (several["adam"], several["ngd"]) == (alone["adam"], alone["ngd"])
    assert len({look.color for look in several.values()}) == 6
    assert len({str(several[f"sgd {word}"].dash) for word in "abc"}) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curves", "-o", "figure.jpg"], "-o figure.jpg: the name of a figure must end in .png, .svg, .pdf or .html"),
        (["curves", "-o", "figure"], "must end in .png, .svg, .pdf or .html"),
        (["curves"], "--out is missing"),
        (["waves", "-o", "a.png"], "unknown chart 'waves'"),
        (["forest", "-o", "a.png", "--y", "accuracy"], "--y accuracy: only curves have selectable axes"),
        (["curves", "-o", "a.png", "--y", "los"], "unknown column 'los'; did you mean 'loss'"),
        (["curves", "-o", "a.png", "--opt", "sgdd"], "did you mean 'sgd'"),
        (["sensitivity", "-o", "a.png"], "nothing to draw: sensitivity: mnist, max_steps 100: no optimizer is tuned"),
        (["curves", "-o", "/proc/none/a.png"], "cannot write to /proc/none/a.png"),
    ],
)
def test_impossible_charts_are_refused(store, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    add_run(store)
    with pytest.raises(UserError) as refused:
        results(["plot", *words])
    assert message in str(refused.value)
    assert not list(tmp_path.glob("*.png"))
