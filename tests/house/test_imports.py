"""The layers of docs/house.md, read from the imports: they go down only, and frameworks stay where they belong."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FRAMEWORKS = ("torch", "jax")

# The group itself, where its ranks meet, and which nodes take part. The doctor asks what there is.
MAY_NAME_DISTRIBUTED = (
    "lockstep.torch.group",
    "lockstep.torch.rendezvous",
    "lockstep.torch.stores",
    "lockstep.launch.membership",
)

# The longest prefix counts. A new module must be given a layer here.
LAYERS = {
    "lockstep": 3,  # the names for users, imported on first use
    "lockstep.world": 0,
    "lockstep.launchers": 0,
    "lockstep.progress": 0,
    "lockstep.errors": 0,
    "lockstep.settings": 0,
    "lockstep.algorithms": 0,
    "lockstep.synonyms": 0,
    "lockstep.renamed": 0,
    "lockstep.run": 1,
    "lockstep.run_base": 1,
    "lockstep.envs": 1,
    "lockstep.record": 1,
    "lockstep.watch": 1,
    "lockstep.peers": 1,
    "lockstep.evaluate": 1,
    "lockstep.segment": 1,
    "lockstep.network": 1,
    "lockstep.signals": 1,
    "lockstep.messages": 1,
    "lockstep.fingerprint": 1,
    "lockstep.tree": 1,
    "lockstep.cores": 1,
    "lockstep.memory": 1,
    "lockstep.demands": 1,
    "lockstep.bounded": 1,
    "lockstep.processes": 1,
    "lockstep.elastic": 1,
    "lockstep.card": 1,
    "lockstep.own_code": 1,
    "lockstep.predict": 1,
    "lockstep.normalize": 1,
    "lockstep.normalizers": 1,
    "lockstep.rollout": 1,
    "lockstep.replay": 1,
    "lockstep.blame": 1,
    "lockstep.frames": 1,
    "lockstep.sum_tree": 1,
    "lockstep.exploration": 1,
    "lockstep.data": 1,
    "lockstep.estimators": 1,
    "lockstep.episodes": 1,
    "lockstep.resume": 1,
    "lockstep.stacks": 1,
    "lockstep.agreement": 1,
    "lockstep.shard_replays": 1,
    "lockstep.backend": 1,
    "lockstep.checkpoint_manager": 1,
    "lockstep.checkpoints": 1,
    "lockstep.collectives": 1,
    "lockstep.evaluation": 1,
    "lockstep.evidence": 1,
    "lockstep.latency": 1,
    "lockstep.preflight": 1,
    "lockstep.run_state": 1,
    "lockstep.surroundings": 1,
    "lockstep.numpy_actor": 1,
    "lockstep.policy_file": 1,
    "lockstep.sampling": 1,
    "lockstep.torch": 2,
    "lockstep.jax": 2,
    "lockstep.train": 3,
    "lockstep.launch": 3,
    "lockstep.recipes": 3,
    "lockstep.offline": 3,
    "lockstep.workflows": 3,
    "lockstep.play": 3,
    "lockstep.check": 3,
    "lockstep.policy_flags": 3,
    "lockstep.which_policy": 3,
    "lockstep.cli": 3,
    "lockstep.arguments": 3,
    "lockstep.completion": 3,
    "lockstep.unknown_arguments": 3,
    "lockstep.doctor": 3,
    "lockstep.probe": 3,
    "lockstep.request": 3,
    "lockstep.start_training": 3,
    "lockstep.faults": 3,
    "lockstep.first_line": 3,
    "lockstep.backend_faults": 3,
    "lockstep.chaos": 3,
    "lockstep.trial": 3,
    "lockstep.report": 3,
    "lockstep.submit": 3,
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
            later = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
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


def read_imports() -> list[Import]:
    files = {module_name(path): path for path in sorted(SOURCE.glob("lockstep/**/*.py"))}
    return [
        found
        for module, path in files.items()
        for found in imports_of(ast.parse(path.read_text()), module, str(path.relative_to(SOURCE)), set(files))
    ]


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer(module: str) -> int:
    prefixes = [prefix for prefix in LAYERS if within(module, prefix) and (prefix != "lockstep" or module == prefix)]
    assert prefixes, f"{module} has no layer: give it one in {Path(__file__).name}"
    return LAYERS[max(prefixes, key=len)]


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
        if here == 3 and needs and not found.lazy and found.module != "lockstep.launch.membership":
            broken.append(f"{found} at its top; import it where a command needs it")
        if within(found.target, "torch.distributed") and found.module not in (
            *MAY_NAME_DISTRIBUTED,
            "lockstep.doctor",
        ):
            broken.append(f"{found}; only {', '.join(MAY_NAME_DISTRIBUTED)} talk to torch.distributed")
    return broken


def test_imports_go_down_only():
    assert not violations(read_imports())


def test_only_the_files_under_jax_comm_name_an_axis_or_a_collective():
    names = {"distributed", "shard_map", "all_gather", "psum", "pmean", "pmax", "axis_index", "PartitionSpec", "Mesh"}
    naming = {
        module_name(path)
        for path in SOURCE.glob("lockstep/jax/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names})
    }
    assert naming == {f"lockstep.jax.{name}" for name in ("comm", "mesh", "processes", "ways")}


def test_everything_has_a_layer():
    for path in SOURCE.glob("lockstep/**/*.py"):
        layer(module_name(path))


def test_only_group_names_torch_distributed():
    """Also not as an attribute, `torch.distributed.all_reduce(...)`; strings and comments do not count."""
    named = {
        str(path.relative_to(SOURCE / "lockstep"))
        for path in SOURCE.glob("lockstep/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.distributed")
    }
    assert named <= {"torch/group.py", "torch/rendezvous.py"}


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("lockstep.world", "import torch", "knows no framework"),
        ("lockstep.rollout", "def f():\n    from torch import Tensor", "knows no framework"),
        ("lockstep.evaluate", "import jax.numpy as jnp", "knows no framework"),
        ("lockstep.world", "from lockstep.run import Run", "above"),
        ("lockstep.run", "from lockstep.torch import comm", "above"),
        ("lockstep.torch.ppo", "from lockstep.train import train", "above"),
        ("lockstep.torch.ppo", "from lockstep.jax.returns import gae", "each other"),
        ("lockstep.jax.returns", "import torch", "each other"),
        ("lockstep.torch.ppo", "import torch.distributed as dist", "torch.distributed"),
        ("lockstep.torch.ppo", "from torch import distributed", "torch.distributed"),
        ("lockstep.cli", "from lockstep.torch.ppo import PPO", "at its top"),
        ("lockstep.train", "import torch", "at its top"),
    ],
)
def test_a_broken_rule_is_seen(module, source, word):
    found = imports_of(ast.parse(source), module, "planted.py", {"lockstep.torch.comm", "lockstep.torch.group"})
    assert any(word in line for line in violations(list(found)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lockstep.cli", "def f():\n    from lockstep.torch.ppo import PPO"),
        ("lockstep.torch.ppo", "from lockstep.world import World\nimport torch.nn.functional as F"),
        ("lockstep.torch.group", "import torch.distributed as dist"),
        ("lockstep.world", "from lockstep.errors import ConfigError\nimport os"),
    ],
)
def test_a_kept_rule_is_not(module, source):
    assert not violations(list(imports_of(ast.parse(source), module, "fine.py", set())))
