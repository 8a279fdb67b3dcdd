"""Write docs/api.md, the page of all public names, from the stubs and docstrings of `src/lockstep`.

    python docs/api.py

griffe reads the source without importing it, so neither torch nor JAX is needed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

PAGE = Path(__file__).with_name("api.md")
SOURCE = Path(__file__).parents[1] / "src"
STUBBED = ("lockstep", "lockstep.envs", "lockstep.experience", "lockstep.torch", "lockstep.jax", "lockstep.engines.ray")
"""Packages whose `__init__.pyi` lists their public names."""
FUNCTIONS = {"lockstep.recipes": ("names", "load", "load_file", "description", "source"), "lockstep.train": ("main",)}
"""Public functions of modules without a stub."""
HEAD = """# API

All public names: import each from the package that heads its section. Every other module may move or change without
notice. `lockstep.__version__` is the installed version. The settings of `Run` and its parts are explained in
[settings.md](settings.md).

Shapes: T steps, B environments of a shard, K shards of this process, N rows, O observation, A choices, D dimensions of
a continuous action, P parameters of the action distribution. A method marked *collective* is called by all ranks in
the same order.

This page is written by `make api` from the docstrings.
"""
EQUATION = re.compile(r"\S.*\S += .*")


def public() -> dict[str, list[str]]:
    """The public names of each documented package or module."""
    return {name: sorted(_stub_names(name)) for name in STUBBED} | {name: list(FUNCTIONS[name]) for name in FUNCTIONS}


def render() -> str:
    """The whole page."""
    package = _load()
    names = public()
    # A name that several packages offer is described once, in the last of them.
    homes = {_resolve(package, where, key).path: (where, key) for where in names for key in names[where]}
    lines = [HEAD]
    for where, keys in names.items():
        members = {key: _resolve(package, where, key) for key in keys}
        module = package if where == "lockstep" else package[where.removeprefix("lockstep.")]
        lines += [f"## {where}", "", _paragraphs(module)[0], "", "| name | what it is |", "|---|---|"]
        lines += [f"| [`{key}`](#{_anchor(*homes[one.path])}) | {_summary(one)} |" for key, one in members.items()]
        lines.append("")
        for key, one in members.items():
            if homes[one.path] == (where, key):
                lines += [f"### {where}.{key}", "", *_describe(key, one), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _load() -> Any:
    one_result: Any = {"returns_multiple_items": False}  # else each line of a result would be one
    return griffe.load(
        "lockstep",
        search_paths=[SOURCE],
        docstring_parser="google",
        docstring_options=one_result,
        resolve_aliases=True,
    )


def _stub_names(package: str) -> Iterator[str]:
    stub = SOURCE.joinpath(*package.split("."), "__init__.pyi").read_text()
    yield from re.findall(r"^from \S+ import \w+ as (\w+)$", stub, re.MULTILINE)


def _resolve(package: Any, where: str, key: str) -> Any:
    """What a public name stands for, where it is defined."""
    if (where, key) == ("lockstep", "train"):  # the name of a module, too
        return package["launch.train.train"]
    member = package[f"{where}.{key}".removeprefix("lockstep.")]
    return member.final_target if member.is_alias else member


def _anchor(where: str, key: str) -> str:
    return f"{where}.{key}".replace(".", "").lower()


def _paragraphs(member: Any) -> list[str]:
    """The text of a docstring before its sections; lines of equations as code."""
    sections = member.docstring.parsed if member.docstring else []
    found: list[str] = []
    for section in sections:
        if section.kind.value != "text":
            continue
        for paragraph in section.value.split("\n\n"):
            lines = paragraph.splitlines()
            code = len(lines) > 1 and all(EQUATION.fullmatch(line.strip()) for line in lines)
            found.append(f"```text\n{paragraph}\n```" if code else " ".join(line.strip() for line in lines))
    return found or [""]


def _summary(member: Any) -> str:
    return _paragraphs(member)[0].replace("|", r"\|")


def _describe(key: str, member: Any) -> list[str]:
    """Everything of a class or a function."""
    lines: list[str] = []
    dataclass = "dataclass" in member.labels
    if not dataclass and (signature := _signature(key, member)):
        lines += ["```py", signature, "```", ""]
    for one in _documented(member):
        for paragraph in _paragraphs(one):
            lines += [paragraph, ""] * (paragraph not in lines)  # a base may say the same
        lines += [*_sections(one, ""), ""]
    if not member.is_class:
        return lines
    attributes = [one for one in _members(member) if one.is_attribute and one.docstring]
    if attributes:
        lines += ["", "Fields:" if dataclass else "Properties:", ""]
        lines += [f"- `{_field(one)}`: {' '.join(_paragraphs(one))}" for one in attributes]
    methods = [one for one in _members(member) if one.is_function]
    if methods:
        lines += ["", "Methods:", ""]
        for one in methods:
            lines.append(f"- `{one.signature()}`: {' '.join(_paragraphs(one))}")
            lines += _sections(one, "  ")
    return lines


def _documented(member: Any) -> list[Any]:
    """The object, and the base of this package whose arguments its own docstring does not repeat."""
    if member.is_class and "__init__" not in member.members and "dataclass" not in member.labels:
        return [member, *(base for base in member.resolved_bases if "__init__" in base.members)]
    return [member]


def _members(cls: Any) -> list[Any]:
    """The public members of a class and of its bases in this package, documented ones only."""
    found = {name: one.final_target if one.is_alias else one for name, one in cls.all_members.items() if name[0] != "_"}
    return [one for one in found.values() if one.docstring]


def _field(member: Any) -> str:
    text = member.name if member.annotation is None else f"{member.name}: {member.annotation}"
    default = str(member.value) if member.value is not None else ""
    plain = default and not re.match(r"(field|cast|self|_)\b|.*\(", default) and "property" not in member.labels
    return f"{text} = {default}" if plain else text


def _sections(member: Any, indent: str) -> list[str]:
    """Arguments, attributes, results and errors of a docstring, as lists."""
    lines: list[str] = []
    titles = {"parameters": "Arguments", "attributes": "Attributes", "returns": "Returns", "raises": "Raises"}
    for section in member.docstring.parsed if member.docstring else []:
        title = titles.get(section.kind.value)
        if title is None:
            continue
        lines += ["" if not indent else None, f"{indent}{'- ' * bool(indent)}{title}:", "" if not indent else None]
        for item in section.value:
            text = " ".join(item.description.split())
            name = getattr(item, "name", "") or (str(item.annotation) if title == "Raises" else "")
            lines.append(f"{indent}{'  ' * bool(indent)}- {f'`{name}`: ' * bool(name)}{text}")
    return [line for line in lines if line is not None]


def _signature(key: str, member: Any) -> str:
    """How a function or class is called, formatted as code."""
    called = member.all_members.get("__init__") if member.is_class else member
    if called is None:
        return ""
    called = called.final_target if called.is_alias else called
    signature = called.signature(name=key, return_type=not member.is_class)
    words = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100", "-"]
    done = subprocess.run(words, input=f"def {signature}: ...", capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("def ").removesuffix(": ...")


if __name__ == "__main__":
    PAGE.write_text(render())
