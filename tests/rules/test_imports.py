"""The layers of docs/source-layout.md, read from the folders: imports go down only and in no circle."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from sources import tree_of

SOURCE = Path(__file__).parents[2] / "src"
FRAMEWORKS = ("torch", "jax")
SCRIPTS = SOURCE / "lockstep/cli/bench/contenders"
"""No module imports them: `lockstep bench` runs each in the environment of another library."""

# Packages with public names, which their `__init__.pyi` lists and docs/api.md describes.
PUBLIC = tuple(
    ".".join(path.parent.relative_to(SOURCE).parts) for path in sorted(SOURCE.glob("lockstep/**/__init__.pyi"))
)

# Torch's collectives, and which nodes take part. The doctor asks what there is.
MAY_NAME_DISTRIBUTED = ("lockstep.torch.collectives", "lockstep.launch.elastic_membership", "lockstep.cli.doctor")

# What lies directly under src/lockstep: the folders, and the few files beside them.
LAYERS = {
    3: ("__init__", "__main__", "train", "cli", "engines", "launch", "recipes", "workflows"),
    2: ("torch", "jax"),
    1: ("run", "session", "preflight", "record", "experience", "envs", "data", "estimators", "distributed"),
    0: ("errors", "world", "config", "system", "algorithms"),
}


@dataclass
class Import:
    path: str
    line: int
    module: str
    target: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.module} imports {self.target}"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports_of(tree: ast.Module, module: str, path: str, modules: set[str]) -> Iterator[Import]:
    """All imports of a file. `lazy`: in a function or for type checkers only."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # holds no import
                continue
            later = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                later = True
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: a relative import; write the whole name"
                # `from lockstep.torch import comm` imports the module lockstep.torch.comm.
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                targets = [name if name in modules or child.module == "torch" else str(child.module) for name in names]
            else:
                targets = []
            yield from (Import(path, child.lineno, module, target, later) for target in targets)
            yield from walk(child, later)

    yield from walk(tree, lazy=False)


@cache
def read_imports() -> list[Import]:
    paths = [path for path in sorted(SOURCE.glob("lockstep/**/*.py")) if path.parent != SCRIPTS]
    files = {module_name(path): path for path in paths}
    return [
        found
        for module, path in files.items()
        for found in imports_of(tree_of(path), module, str(path.relative_to(SOURCE)), set(files))
    ]


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room(module: str) -> str:
    """The folder or file under src/lockstep that a module lies in."""
    return module.split(".")[1] if "." in module else "__init__"


def layer(module: str) -> int:
    found = [number for number, rooms in LAYERS.items() if room(module) in rooms]
    assert found, f"src/lockstep/{room(module)} has no layer: give it one in {Path(__file__).name}"
    return found[0]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, largest first (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in arrows.get(node, set()):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            at = stack.index(node)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for node in arrows:
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


def arrows_of(imports: list[Import], name: Callable[[str], str]) -> dict[str, set[str]]:
    """Who imports whom, by `name`. The package itself is left out: it names what it offers, and loads it on demand."""
    found: dict[str, set[str]] = {}
    for one in imports:
        if not within(one.target, "lockstep") or "lockstep" in (one.module, one.target):
            continue
        if name(one.module) != name(one.target):
            found.setdefault(name(one.module), set()).add(name(one.target))
    return found


def framework(target: str) -> str | None:
    """The framework that importing this loads: by its own name, or by our backend's."""
    for name in FRAMEWORKS:
        if within(target, name) or within(target, f"lockstep.{name}") or (name == "jax" and within(target, "jaxlib")):
            return name
    return None


def violations(imports: list[Import]) -> list[str]:
    """Every broken rule, in words."""
    broken: list[str] = []
    for found in imports:
        here, needs = layer(found.module), framework(found.target)
        if within(found.target, "lockstep") and layer(found.target) > here:
            broken.append(f"{found}, which lies above it (L{here} -> L{layer(found.target)})")
        if here < 2 and needs:
            broken.append(f"{found}; L{here} knows no framework")
        for backend, other in (("torch", "jax"), ("jax", "torch")):
            if within(found.module, f"lockstep.{backend}") and needs == other:
                broken.append(f"{found}; the backends know nothing of each other")
        if here == 3 and needs and not found.lazy and found.module != "lockstep.launch.elastic_membership":
            broken.append(f"{found} at its top; import it where a command needs it")
        if within(found.target, "torch.distributed") and not any(
            within(found.module, allowed) for allowed in MAY_NAME_DISTRIBUTED
        ):
            broken.append(f"{found}; only {', '.join(MAY_NAME_DISTRIBUTED)} talk to torch.distributed")
    return broken


def test_imports_go_down_only():
    assert not violations(read_imports())


def test_no_files_import_each_other_in_a_circle():
    assert circles(arrows_of(read_imports(), lambda module: module)) == []


def test_no_folders_import_each_other_in_a_circle():
    assert circles(arrows_of(read_imports(), room)) == []


def test_modules_import_from_modules_not_from_public_packages():
    """The public names are for users: inside, they would be a circle that this file cannot see."""
    assert "lockstep" in PUBLIC and "lockstep.torch" in PUBLIC
    found = [str(one) for one in read_imports() if one.target in PUBLIC]
    assert found == []


def test_a_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}}) == []


def test_few_things_lie_at_the_top():
    top = {
        path.stem
        for path in (SOURCE / "lockstep").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert top == {name for rooms in LAYERS.values() for name in rooms}


def test_only_the_collectives_of_jax_name_an_axis_or_a_collective():
    names = {"distributed", "shard_map", "all_gather", "psum", "pmean", "pmax", "axis_index", "PartitionSpec", "Mesh"}
    naming = {
        module_name(path)
        for path in SOURCE.glob("lockstep/jax/**/*.py")
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names})
    }
    assert all(module == "lockstep.jax.comm" or within(module, "lockstep.jax.collectives") for module in naming)
    assert naming


def test_only_the_collectives_of_torch_name_torch_distributed():
    """Also not as an attribute, `torch.distributed.all_reduce(...)`; strings and comments do not count."""
    named = {
        str(path.relative_to(SOURCE / "lockstep"))
        for path in SOURCE.glob("lockstep/**/*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.distributed")
    }
    assert all(path.startswith("torch/collectives/") for path in named)


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("lockstep.world", "import torch", "knows no framework"),
        ("lockstep.experience.rollout", "def f():\n    from torch import Tensor", "knows no framework"),
        ("lockstep.experience.evaluate", "import jax.numpy as jnp", "knows no framework"),
        ("lockstep.world", "from lockstep.run import Run", "above"),
        ("lockstep.run", "from lockstep.torch import comm", "above"),
        ("lockstep.torch.ppo", "from lockstep.launch.train import train", "above"),
        ("lockstep.torch.ppo", "from lockstep.jax.returns import gae", "each other"),
        ("lockstep.jax.returns", "import torch", "each other"),
        ("lockstep.torch.ppo", "import torch.distributed as dist", "torch.distributed"),
        ("lockstep.torch.ppo", "from torch import distributed", "torch.distributed"),
        ("lockstep.cli", "from lockstep.torch.ppo import PPO", "at its top"),
        ("lockstep.train", "import torch", "at its top"),
    ],
)
def test_a_broken_rule_is_seen(module, source, word):
    found = imports_of(
        ast.parse(source), module, "planted.py", {"lockstep.torch.comm", "lockstep.torch.collectives.group"}
    )
    assert any(word in line for line in violations(list(found)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lockstep.cli", "def f():\n    from lockstep.torch.ppo import PPO"),
        ("lockstep.torch.ppo", "from lockstep.world import World\nimport torch.nn.functional as F"),
        ("lockstep.torch.collectives.group", "import torch.distributed as dist"),
        ("lockstep.world", "from lockstep.errors import ConfigError\nimport os"),
    ],
)
def test_a_kept_rule_is_not(module, source):
    assert not violations(list(imports_of(ast.parse(source), module, "fine.py", set())))


@cache
def names_in(module: str) -> set[str] | None:
    """What a module of ours has at its top, submodules and lazy names included; None if there is no such module."""
    path = SOURCE.joinpath(*module.split("."))
    beside = {each.stem for each in path.iterdir()} if path.is_dir() else set[str]()
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py", path / "__init__.pyi") if file.is_file()]
    if not found and not beside - {"__pycache__"}:
        return None
    names = beside
    for file in found:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name)
    return names


def missing_imports(tree: ast.Module) -> Iterator[str]:
    """Imports of what our modules do not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.partition(".")[0] == "lockstep":
                names = names_in(module)
                if names is None or (name and name not in names):
                    yield f"{node.lineno}: {module} {name}"


def test_scripts_and_tests_import_what_there_is():
    """Only some of them run in each test run, and no type checker reads them."""
    root = SOURCE.parent
    files = [file for folder in ("benchmarks", "docs", "examples", "tests") for file in (root / folder).rglob("*.py")]
    missing = [f"{file.relative_to(root)}:{one}" for file in files for one in missing_imports(tree_of(file))]
    assert missing == []


def test_a_missing_import_is_seen():
    source = "import lockstep.nowhere\nfrom lockstep.run import Run, Walk\nfrom lockstep import World"
    assert [*missing_imports(ast.parse(source))] == ["1: lockstep.nowhere ", "2: lockstep.run Walk"]
