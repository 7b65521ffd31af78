"""Plug-ins: optimizers and tasks of installed packages and of a user's own files.

A package announces them by entry points of the groups `bench.optimizers` and `bench.tasks`: they are listed without
being imported. Others are given as `module:Class` or `file.py:Class`.
"""

import ast
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, distributions, entry_points, packages_distributions, version
from pathlib import Path
from typing import Any, Generic, TypeVar

_NOT_FOREIGN = ("bench", "tasks", "optimizers", "torch")
_PREFIX = "bench_plugin_"
foreign: set[str] = set()
"""Modules and files that this process was asked to import and that are neither the suite's nor torch's."""

BROKEN = Exception, SystemExit
"""What the code of a plug-in may raise; an exit would end the process silently."""


class PluginError(Exception):
    """A plug-in cannot be used; the message says which, why, and what to do."""


SESSION = "__main__"
session: dict[str, tuple[str, Any]] = {}
"""Classes and specs that only this process and its workers have, by name (`__main__:Class`): package and object."""

Spec = TypeVar("Spec", bound=Any)


class Registry(Mapping[str, Spec], Generic[Spec]):
    """The optimizers or tasks of the suite and of plug-ins, by name.

    Iterating gives the names, without importing anything. A plug-in is imported when it is looked up, and `make` builds
    its spec from name, object and target. `built_in` are the suite's, by name.
    """

    def __init__(self, group: str, specs: Iterable[Spec], make: Callable[[str, Any, str], Spec]) -> None:
        self.group, self.make = group, make
        self.built_in = {spec.name: spec for spec in specs}
        self._loaded: dict[tuple[str, str], Spec] = {}

    @cached_property
    def announced(self) -> dict[str, EntryPoint]:
        """Entry points by name; of several packages that share a name, the first by its own name counts."""
        points = sorted(entry_points(group=self.group), key=_package, reverse=True)
        return {point.name: point for point in points if point.name not in self.built_in}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.built_in, *sorted(self.announced)]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.built_in or name in self.announced or ":" in name)

    def __getitem__(self, name: str) -> Spec:
        """The spec of this name; KeyError if it is unknown, PluginError if the plug-in cannot be used."""
        if name in self.built_in:
            return self.built_in[name]
        if name not in self.announced and ":" not in name:
            raise KeyError(name)
        target = self.announced[name].value if name in self.announced else name
        place = target.rpartition(":")[0]
        # A file may change, and so may the working folder, and a class of a notebook.
        key = (name, provenance(target) if place.endswith(".py") or place == SESSION else "")
        if key not in self._loaded:
            self._loaded[key] = self.make(name, load(target), target)
        return self._loaded[key]

    def hidden(self) -> list[str]:
        """Plug-ins that have no effect, since they announce a name of the suite's own: package, target and name."""
        points = [point for point in entry_points(group=self.group) if point.name in self.built_in]
        return sorted(f"{_package(point)} ({point.value}) as {point.name}" for point in points)

    def describe(self, name: str) -> str | None:
        """A description of a plug-in's origin; None for the suite's own and unannounced names."""
        point = self.announced.get(name)
        return None if point is None else f"{_package(point)} ({point.value})"


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load(target: str) -> Any:
    """Import `module:Name` or `file.py:Name`; its output goes to standard error. PluginError if that fails."""
    if target in session:
        return session[target][1]
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise PluginError(f"{target}: write module:Class or file.py:Class")
    if place == SESSION:
        raise PluginError(f"{target} was given in another session: pass the class here, or write it into a file")
    value = load_module(place)
    for part in name.split("."):
        if not hasattr(value, part):
            near = get_close_matches(part, dir(value), n=1)
            raise PluginError(f"{place} has no {part!r}" + "".join(f"; did you mean {name!r}?" for name in near))
        value = getattr(value, part)
    return value


def load_module(place: str) -> Any:
    """Import `module` or `file.py`; its output goes to standard error. PluginError if that fails."""
    if place.endswith(".py") or place.partition(".")[0] not in _NOT_FOREIGN:
        foreign.add(place)
    with redirect_stdout(sys.stderr):
        try:
            if place.endswith(".py"):
                return _file(Path(place))
            _see_here()
            return importlib.import_module(place)
        except SyntaxError as error:
            where = f", line {error.lineno}" if error.lineno else ""  # none for bytes of 0
            raise PluginError(f"{error.filename or place}{where}: {error.msg}") from None
        except (PluginError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(
                f"{error.name}."
            ):  # not one it imports
                advice = "is its package installed in this environment? A file is named as folder/file.py:Class"
                raise PluginError(f"there is no module {place!r} here; {advice}") from None
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}, line {frame.lineno}"
            raise PluginError(f"importing {place} raises {type(error).__name__}: {error} ({where})") from None


def _see_here() -> None:
    """Find modules of the working folder, as `python -m` does, but after all installed ones."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise PluginError(f"there is no file {path}")
    helpers = sources(path)[1:]
    name = f"{_PREFIX}{path.stem}_{_digest(path, *helpers)}"
    if name not in sys.modules:
        for known, module in list(sys.modules.items()):  # a helper may have changed since another import
            file = getattr(module, "__file__", None)
            if file and Path(file).resolve() in helpers and known != "__main__" and not known.startswith(_PREFIX):
                del sys.modules[known]
        importlib.invalidate_caches()
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        vars(module)["__self__"] = module  # or Python's teardown passes over it, and does not flush its open files
        sys.path.append(str(path.resolve().parent))  # its own helpers
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def sources(path: Path) -> list[Path]:
    """A file, and the files beside it that it imports, directly or through each other: all of a package in its folder.

    Imports are read, not run. Python's and the suite's own packages, torch and hidden folders do not count.
    """
    folder, helpers, left = path.resolve().parent, set[Path](), [path]
    while left:
        try:
            tops = _imports(left.pop().read_bytes())
        except OSError:
            continue
        beside = [place for top in tops for place in (folder / f"{top}.py", folder / top) if place.exists()]
        files = {file for place in beside for file in (place.rglob("*.py") if place.is_dir() else [place])}
        files = {file for file in files if "/." not in f"/{file.relative_to(folder).as_posix()}"}
        new = files - helpers - {path.resolve()}
        helpers |= new
        left += new
    return [path, *sorted(helpers)]


@lru_cache(maxsize=256)
def _imports(text: bytes) -> frozenset[str]:
    """The first parts of the names of modules that a source imports; nothing if it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return frozenset(name.partition(".")[0] for name in names) - {*_NOT_FOREIGN} - sys.stdlib_module_names


def provenance(target: str) -> str:
    """The package of an importable target, with its version.

    Code that may change under the same version has a digest of its source: the file with its helpers (`sources`), or
    the module's whole package. Nothing is imported.
    """
    if target in session:
        return session[target][0]
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        return _digested(sources(Path(place)))
    top = place.partition(".")[0]
    package = "".join(f"{name} {version(name)}" for name in packages_distributions().get(top, [])[:1])
    if package and not _editable(package.split()[0]):
        return package
    _see_here()
    module = importlib.util.find_spec(top) if top.isidentifier() and top != SESSION else None
    folders = [Path(folder) for folder in module.submodule_search_locations or ()] if module else []
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    digest = _digested(files or [Path(module.origin)] if module and module.origin else files)
    return f"{package}, {digest}" if package else digest


def _digested(files: Sequence[Path]) -> str:
    return f"file{'s' * (len(files) > 1)} {_digest(*files) or 'unreadable'}"


def _digest(*paths: Path) -> str:
    """Digest of the files' contents; empty if one cannot be read."""
    try:
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:12]
    except OSError:
        return ""


def _editable(name: str) -> bool:
    """Whether a package is installed as a link to its source, which may change under the same version."""
    installed = next(iter(distributions(name=name)), None)
    return installed is not None and '"editable": true' in (installed.read_text("direct_url.json") or "")


@lru_cache(maxsize=256)
def bare(name: str) -> str:
    """A name without the folder of a file, or `__main__`: `dir/my_file.py:MyOpt` is `my_file.py:MyOpt` anywhere."""
    place, _, target = name.rpartition(":")
    return f"{Path(place).name}:{target}" if place.endswith(".py") else target if place == SESSION else name


@lru_cache(maxsize=256)
def slug(name: str) -> str:
    """A name as used in names of files and runs: `dir/my_file.py:MyOpt` becomes `my_file.MyOpt`."""
    place, _, target = bare(name).rpartition(":")
    stem = Path(place).name.removesuffix(".py")
    return re.sub(r"[^\w.+-]|^\.", "_", f"{stem}.{target}" if stem else target, flags=re.ASCII)[:80]
