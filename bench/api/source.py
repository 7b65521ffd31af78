"""From an optimizer class to a name that every process can import, with a digest of its source.

A class from an installed package becomes `module:Class`, one from a file `file.py:Class`. A class from a notebook or
the running script is written into the store with its helpers and imports: `STORE/sources/DIGEST/NAME.py`.
"""

import __future__

import ast
import builtins
import hashlib
import inspect
import linecache
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from bench.errors import UserError

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_WAY_OUT = "write the class into a file and pass 'file.py:{}'"


def name_of(opt: "str | type", store: Path) -> str:
    """The value of `--opt`: the name itself, or the name of a class.

    Args:
        opt: a name as `bench list optimizers` prints it, `module:Class`, `file.py:Class`, or a class.
        store: folder for the source of a class without a file.

    Raises:
        UserError: other processes cannot import the class's source, or the store cannot be written.
    """
    if isinstance(opt, str):
        return opt
    if not isinstance(opt, type):
        raise UserError(f"{opt!r} is not an optimizer: pass a name, 'file.py:MyClass', or a class")
    if "<locals>" in opt.__qualname__:
        raise _refused(opt, "is defined inside a function")
    module = sys.modules.get(opt.__module__)
    if opt.__module__ == "__main__":
        return _written(opt, vars(module) if module is not None else {}, store)
    if module is None or _attribute(module, opt.__qualname__) is not opt:
        raise _refused(opt, f"is not the object of this name in the module {opt.__module__}")
    file = getattr(module, "__file__", None)
    if file is None:
        raise _refused(opt, f"has no source: the module {opt.__module__} has no file")
    if module.__package__ or _is_installed(Path(file)):
        return f"{opt.__module__}:{opt.__qualname__}"
    return f"{_short(Path(file))}:{opt.__qualname__}"


def _refused(opt: type, why: str) -> UserError:
    return UserError(f"the class {opt.__qualname__} {why}; {_WAY_OUT.format(opt.__name__)}")


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_installed(file: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.is_relative_to(folder) for folder in folders)


def _short(path: Path) -> Path:
    """The path relative to the working folder if inside it."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -- classes of notebooks and scripts ---------------------------------------------------------------------------------


def _written(opt: type, names: Mapping[str, Any], store: Path) -> str:
    from bench.store.block import SOURCES
    from bench.store.files import making, replacing

    text = module_text(opt, names)
    folder = store / SOURCES / hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"{opt.__name__}.py"
    with making(store):
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != text.encode():
            with replacing(path) as temporary:
                temporary.write_bytes(text.encode())
    return f"{_short(path)}:{opt.__name__}"


def module_text(opt: type, names: Mapping[str, Any]) -> str:
    """The text of a module with a class and its helpers, constants and imports.

    Args:
        opt: a class defined at the top level of a notebook cell or a script.
        names: the global names there.

    Raises:
        UserError: its source is unknown, or it uses a value that cannot be written as source.
    """
    found = _Module(opt, names)
    found.add(opt)
    future = "from __future__ import annotations" * found.deferred
    imports = "\n".join(sorted(found.imports))
    words = [f'"""{opt.__name__}, as it was passed to bench."""', future, imports, *found.pieces]
    return "\n\n".join(filter(None, words)) + "\n"


class _Module:
    """Collects the source of a class and of its helpers, helpers first; `deferred` if annotations are not evaluated."""

    def __init__(self, opt: type, names: Mapping[str, Any]) -> None:
        self.opt, self.names = opt, names
        self.imports: set[str] = set()
        self.pieces: list[str] = []
        self.deferred = False
        self._known: set[str] = set()

    def add(self, piece: Any) -> None:
        source = self._source(piece)
        self._known.add(piece.__name__)
        for name in _globals_of(symtable.symtable(source, "<source>", "exec")):
            if name not in self._known and name in self.names:
                self._known.add(name)
                self._use(name, self.names[name], source)
        self.pieces.append(source)

    def _use(self, name: str, value: Any, source: str) -> None:
        """Write the definition of a global name."""
        if isinstance(value, ModuleType) and value.__name__ in sys.modules and value.__name__ != "__main__":
            self.imports.add(f"import {value.__name__}" + f" as {name}" * (name != value.__name__))
            self.imports |= {f"import {each}" for each in _submodules(name, value.__name__, source)}
        elif isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            if value.__name__ != name:
                raise self._unwritable(name, f"another name of {value.__name__}")
            self.add(value)
        elif (literal := _literal(value)) is not None:
            self.pieces.append(f"{name} = {literal}")
        elif (place := _place_of(name, value)) is not None:
            module, own = place
            self.imports.add(f"from {module} import {own}" + f" as {name}" * (own != name))
        elif getattr(builtins, name, None) is not value:
            raise self._unwritable(name, f"a {type(value).__name__} of the session")

    def _unwritable(self, name: str, what: str) -> UserError:
        why = f"uses {name!r}, {what}, which other processes do not have: define it in the class,"
        return UserError(f"the class {self.opt.__qualname__} {why} or {_WAY_OUT.format(self.opt.__name__)}")

    def _source(self, piece: Any) -> str:
        """The source of a class or a function."""
        code = next(_codes(piece), None)
        if code is None:
            # A class without methods, such as an enumeration: the only definition of its name in a cell or the script.
            found = {text for file in self._files() for text in _definitions(piece, file)}
        else:
            self.deferred |= bool(code.co_flags & __future__.annotations.compiler_flag)
            found = set(_definitions(piece, code.co_filename, code)[:1])
        if len(found) == 1:
            return found.pop()
        why = "has no source" if piece is self.opt else f"uses {piece.__name__!r}, which has no source"
        why += " that Python can find" if not found else f" that is unique: it has {len(found)} definitions"
        raise _refused(self.opt, why)

    def _files(self) -> list[str]:
        """The file of the class, and the cells of the session, whose lines linecache has without a file's time."""
        own = [code.co_filename for code in _codes(self.opt)][:1]
        return own + [file for file, entry in [*linecache.cache.items()] if len(entry) > 1 and entry[1] is None]


def _definitions(piece: Any, file: str, code: CodeType | None = None) -> list[str]:
    """The source of the definitions of this name in a file, of those that hold the code object if one is given."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    alike = [node for node in nodes if isinstance(node, ast.ClassDef) == isinstance(piece, type)]
    found = [node for node in alike if node.name == piece.__name__ and (code is None or _holds(node, code))]
    return [textwrap.dedent("".join(lines[_first_line(node) - 1 : node.end_lineno])).rstrip() for node in found]


def _codes(piece: Any) -> Iterator[CodeType]:
    """The code objects of the functions defined in a class, or the one of a function."""
    own = [piece] if isinstance(piece, FunctionType) else list(vars(piece).values())
    for value in own:
        function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None
        if isinstance(function, FunctionType):
            code = function.__code__
            if isinstance(piece, FunctionType) or code.co_qualname == f"{piece.__qualname__}.{function.__name__}":
                yield code


def _holds(node: ast.ClassDef | ast.FunctionDef, code: CodeType) -> bool:
    """Whether a code object is within the lines of a definition."""
    return _first_line(node) <= code.co_firstlineno <= (node.end_lineno or node.lineno)


def _first_line(node: ast.ClassDef | ast.FunctionDef) -> int:
    """The line of a definition, or of its first decorator."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a piece of source uses, in order."""
    for symbol in table.get_symbols():
        own = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        if symbol.is_referenced() and (symbol.is_global() if table.get_type() != "module" else not own):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_of(child)


def _submodules(name: str, module: str, source: str) -> Iterator[str]:
    """Submodules used as `name.a.b` in the source, which must be imported."""
    for node in ast.walk(ast.parse(source)):
        parts, at = [], node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id == name:
            for i in range(1, len(parts) + 1):
                if (found := ".".join([module, *parts[:i]])) in sys.modules:
                    yield found


def _literal(value: Any) -> str | None:
    """A constant as Python source; None for anything else."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f'float("{value}")'
    if type(value) in _CONSTANTS:
        return repr(value)
    if type(value) is tuple and all(_literal(each) is not None for each in value):
        return f"({''.join(f'{_literal(each)}, ' for each in value)})"
    return None


def _place_of(name: str, value: Any) -> tuple[str, str] | None:
    """A module that contains this value, and its name there; None if there is none."""
    home, own = getattr(value, "__module__", None), getattr(value, "__name__", None) or name
    if isinstance(home, str) and isinstance(own, str) and home != "__main__" and home in sys.modules:
        found = getattr(sys.modules[home], own, None)
        if found is value:
            return home, own
    there = [
        each
        for each, module in [*sys.modules.items()]
        if each != "__main__" and vars(module).get(name) is value and not each.startswith("_")
    ]
    return (min(there, key=lambda each: (each.count("."), len(each), each)), name) if there else None
