"""Import user code by name: `module:Name` or `path/to/file.py:Name`."""

import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.errors import ConfigError

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
    location, _, name = path.rpartition(":")
    if not location or not name:
        raise ConfigError(f"{setting}={path} names nothing; write module:Name or path/to/file.py:Name")
    module = load_module(location, f"{setting}={path}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in dir(found) if not key.startswith("_")]
            raise ConfigError(f"{setting}={path}: {location} has no {name}{near(name, public)}")
        found = getattr(found, part)
    return found


def load_module(location: str, setting: str) -> ModuleType:
    """Import a module by dotted name or file. Raises a `ConfigError` that begins with `setting`."""
    _importing.append(setting)
    try:
        return _from_file(Path(location), setting) if location.endswith(".py") else _from_name(location)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and location.split(".")[0] == error.name.split(".")[0]:
            raise ConfigError(
                f"{setting}: no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from error
        raise ConfigError(f"{setting}: {location} needs the module {error.name!r}, which is not installed") from error
    except Exception as error:
        raise ConfigError(f"{setting}: importing {location} failed: {type(error).__name__}: {error}") from error
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
    """`; did you mean a, b?`, or the empty string if no known name is similar."""
    by_lower = {key.lower(): key for key in reversed(known)}
    prefixed = sorted((key for low, key in by_lower.items() if low.startswith(name.lower())), reverse=True)
    close = [by_lower[low] for low in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]
    found = list(dict.fromkeys([*prefixed[:2], *close]))[:3]
    return f"; did you mean {', '.join(found)}?" if found else ""


def _from_name(name: str) -> ModuleType:
    # A console script, unlike `python -m`, does not search the working directory. Appended last, to shadow nothing.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _from_file(path: Path, setting: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{setting}: there is no file {path.absolute()}")
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
