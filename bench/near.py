"""Suggestions for misspelt words and for names that other programs use."""

from collections.abc import Iterable
from difflib import get_close_matches

COMMANDS = {
    "train": "fit", "run": "fit", "grid": "sweep", "optimize": "tune", "results": "leaderboard", "chart": "plot",
    "ls": "list", "claims": "reproduce --claims",
}  # fmt: skip
"""Commands of other programs, and ours."""

OPTIONS = {
    "epochs": ["trainer.max_epochs"], "steps": ["trainer.max_steps"], "batch_size": ["trainer.batch_size"],
    "lr": ["opt.lr"], "learning_rate": ["opt.lr"], "wd": ["opt.weight_decay"], "weight_decay": ["opt.weight_decay"],
    "momentum": ["opt.momentum", "opt.betas"], "optimizer": ["opt"], "model": ["task"], "dataset": ["task"],
    "gpus": ["workers", "trainer.devices"], "jobs": ["workers"], "cpu": ["device"], "output": ["out", "store"],
    "output_dir": ["out", "store"], "seed": ["seed", "seeds"], "n_trials": ["trials"],
}  # fmt: skip
"""Options of other programs, and ours in order of preference."""


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name closest to a misspelt word; None if none has this similarity, in [0, 1]."""
    return next(iter(several(word, known, 1, least)), None)


def several(word: str, known: Iterable[str], most: int = 3, least: float = 0.6) -> list[str]:
    """The known names closest to a misspelt word, at most so many. Dashes equal underscores, and case is ignored."""
    names = {_plain(name): name for name in known}
    return [names[near] for near in get_close_matches(_plain(word), names, most, least)]


def meant(word: str, known: Iterable[str]) -> str | None:
    """The option that a word means: a synonym, else the nearest; both with their dashes."""
    names = {_plain(name): name for name in known}
    typed = _plain(word)
    group, dot, rest = typed.partition(".")
    candidates = (typed, *OPTIONS.get(rest if dot else group, ()))
    return next((names[name] for name in candidates if name in names), None) or nearest(word, names.values())


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_").lower()
