"""`bench new`: a small complete package with an optimizer or a task, as a starting point."""

import keyword
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from bench.api.calls import Place, path_of, public
from bench.errors import UserError
from bench.output import Answer
from optimizers import OPTIMIZERS
from tasks import TASKS

_TEMPLATES = Path(__file__).parent / "templates"


@public
def new(kind: Literal["optimizer", "task"], name: str, *, out: Place | None = None) -> Answer:
    """Write a small, complete package with an optimizer or a task of your own: class, spec, test, README.

    Args:
        kind: of the package.
        name: name of the package, and of the optimizer or task: my_opt.
        out: folder to create (default: ./NAME).
    """
    folder = path_of(out) or Path(name)
    words = {"name": name, "cls": name.title().replace("_", ""), "dist": name.replace("_", "-")}
    registry, why = OPTIMIZERS if kind == "optimizer" else TASKS, ""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name) or {name, words["cls"]} & {*keyword.kwlist}:
        why = "cannot be the name of a Python package: use lowercase letters, digits and _, as in my_opt"
    elif name in registry:
        why = f"is taken by {registry.describe(name) or 'the suite'}; choose another name"
    elif name in ("tests", *sys.stdlib_module_names) or (find_spec(name) is not None and not folder.exists()):
        why = "is a Python module, and the package would shadow it; choose another name"
    if why:
        raise UserError(f"{name!r} {why}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists; choose another folder with --out, or remove it")
    paths = list[Path]()
    try:
        for template in sorted((_TEMPLATES / kind).glob("*.j2")):
            # `__name__.optimizer.py.j2` is `NAME/optimizer.py`.
            place = re.sub(r"^(__name__|tests)\.", r"\1/", template.stem).replace("__name__", name)
            paths.append(path := folder / place)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = re.sub(r"\{\{ (\w+) \}\}", lambda match: words[match[1]], template.read_text("utf-8"))
            path.write_text(text, "utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(f"cannot write {folder}: {error.strerror or error}; choose another folder with --out") from None
    install = f"install it: uv pip install -e {folder} (or pip); then see {folder / 'README.md'}"
    return Answer({"out": folder, "files": paths}, [*map(str, paths), install])
