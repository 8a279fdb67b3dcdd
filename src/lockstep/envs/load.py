"""Import user code by name: `module:Name` or `path/to/file.py:Name`."""

import difflib
import importlib
import importlib.util
import os
import re
import symtable
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.envs.errors import describe_error
from lockstep.errors import ConfigError

_VERSION = re.compile(r"-v(\d+)$")
_DEFINES_MORE = re.compile(r"import\s*\*|\b(globals?|locals|vars|exec|setattr|modules)\b|__getattr__|__dict__|:=")
_importing: list[str] = []
"""Settings whose modules are being imported, outermost first."""


def check_not_imported(call: str) -> None:
    """Refuse a call made by a user's file while it is being imported for a setting such as `task`."""
    if _importing:
        raise ConfigError(
            f"{_importing[0]}: importing its file calls {call}, which would import it again; put that call under "
            '`if __name__ == "__main__":`'
        )


def load_object(path: str, setting: str) -> Any:
    """Import the object that `path` names.

    Args:
        path: `module:Name` (`Name` may have dots) or `path/to/file.py:Name`; the working directory is searched too.
        setting: name of the setting for messages, such as `task`.
    """
    location, name = _parts(path, setting)
    module = load_module(location, f"{setting}={path}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in dir(found) if not key.startswith("_")]
            public = [key for key in public if not isinstance(getattr(found, key, None), ModuleType)]
            raise ConfigError(f"{setting}={path}: {location} has no {name}{near(name, public)}")
        found = getattr(found, part)
    return found


def check_location(path: str, setting: str) -> None:
    """Raise `ConfigError` if there is no file or module that `path` names, or its file does not define the name.

    Imports nothing, so that it is quick.
    """
    location, name = _parts(path, setting)
    if location.endswith(".py"):
        _check_file(Path(location), f"{setting}={path}")
        defined = _defined_in(Path(location), f"{setting}={path}")
        if defined is not None and (first := name.partition(".")[0]) not in defined:
            public = [key for key in defined if not key.startswith("_")]
            raise ConfigError(f"{setting}={path}: {location} has no {name}{near(first, public)}")
        return
    _search_working_directory()
    package = location.partition(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise _no_module(package, f"{setting}={path}")


def _parts(path: str, setting: str) -> tuple[str, str]:
    """The module or file, and the name in it."""
    location, _, name = path.rpartition(":")
    if not location or not name:
        raise ConfigError(f"{setting}={path} names nothing; write module:Name or path/to/file.py:Name")
    return location, name


def load_module(location: str, setting: str) -> ModuleType:
    """Import a module by dotted name or file. Raises a `ConfigError` that begins with `setting`."""
    _importing.append(setting)
    try:
        return _from_file(Path(location), setting) if location.endswith(".py") else _from_name(location)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and location.split(".")[0] == error.name.split(".")[0]:
            raise _no_module(error.name, setting) from error
        raise ConfigError(f"{setting}: {location} needs the module {error.name!r}, which is not installed") from error
    except Exception as error:
        raise ConfigError(f"{setting}: importing {location} failed: {describe_error(error)}") from error
    finally:
        _importing.pop()


def absolute(name: str) -> str:
    """The name with an absolute file path, which resolves from any directory."""
    location, colon, rest = name.rpartition(":")
    return f"{Path(location).resolve()}{colon}{rest}" if location.endswith(".py") else name


def portable(name: str) -> str:
    """The name without the file's folder, which may differ between hosts."""
    location, colon, rest = name.rpartition(":")
    return f"{Path(location).name}{colon}{rest}" if location.endswith(".py") else name


def environments_in(module: ModuleType) -> list[str]:
    """Names of classes defined in a module that have `reset` and `step`."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and all(callable(getattr(value, method, None)) for method in ("reset", "step"))
    ]


def near(name: str, known: list[str]) -> str:
    """`; did you mean a, b?`, ids in their newest versions; or the empty string if no known name is similar."""
    newest = {_unversioned(key): key for key in sorted(known, key=_version)}
    by_lower = {key.lower(): key for key in reversed(known)}
    prefixed = sorted((key for low, key in by_lower.items() if name and low.startswith(name.lower())), reverse=True)
    by_word = {_unversioned(low): key for low, key in by_lower.items()}  # `-v0` makes any two short ids similar
    close = [by_word[low] for low in difflib.get_close_matches(_unversioned(name.lower()), by_word, n=9, cutoff=0.6)]
    found = list(dict.fromkeys(newest[_unversioned(key)] for key in [*prefixed[:2], *close]))[:3]
    return f"; did you mean {', '.join(found)}?" if found else ""


def _unversioned(task: str) -> str:
    return _VERSION.sub("", task)


def _version(task: str) -> int:
    found = _VERSION.search(task)
    return -1 if found is None else int(found[1])


def _no_module(name: str, setting: str) -> ConfigError:
    return ConfigError(
        f"{setting}: no module {name!r} in {Path.cwd()} or among the installed packages; go to the folder that has it, "
        "name that folder in PYTHONPATH, or install it"
    )


def _check_file(path: Path, setting: str) -> None:
    if not path.is_file():
        name, given, _ = setting.partition("=")
        moved = (
            f"; if a run began with it elsewhere, change {name} in its run.yaml, or --resume it with --set {name}=..."
        )
        of_a_run = given and path.is_absolute()  # run.yaml has absolute paths, of the machine that the run began on
        raise ConfigError(f"{setting}: there is no file {path.absolute()}{moved if of_a_run else ''}")


def _defined_in(path: Path, setting: str) -> list[str] | None:
    """Names that a file defines at its top level; None if code in it may define more."""
    try:
        source = importlib.util.decode_source(path.read_bytes())
        if _DEFINES_MORE.search(source):
            return None
        symbols = symtable.symtable(source, str(path), "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{setting}: importing {path} failed: {type(error).__name__}: {error}") from error
    return [one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()]


def _search_working_directory() -> None:
    # A console script, unlike `python -m`, does not search the working directory. Appended last, to shadow nothing.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def _from_name(name: str) -> ModuleType:
    _search_working_directory()
    return importlib.import_module(name)


def _from_file(path: Path, setting: str) -> ModuleType:
    _check_file(path, setting)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # allows imports of sibling files, as in a script
        sys.path.insert(0, folder)
    name = f"lockstep_file_{path.resolve()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
