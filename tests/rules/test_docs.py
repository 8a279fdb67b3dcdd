"""Pages say what is so: links lead somewhere, tables match the code, translations hold the same commands."""

import argparse
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from pages import CHINESE, PAGES, ROOT, blocks, commands, name, prose, tables

from lockstep.algorithms.all import ALGORITHMS, OFFLINE_ALGORITHMS
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.algorithms.task_defaults import BY_TASK, DQN, PPO
from lockstep.cli.parser import parser
from lockstep.config import settings
from lockstep.config.run_base import RunBase
from lockstep.data.preparation.identify import NormParams
from lockstep.recipes import pong
from lockstep.record.summary import empty_summary
from lockstep.run import EnvConfig, NetworkConfig, OfflineRun, Run, ScoreNetworkConfig

GUIDES = sorted(page for page in ROOT.glob("docs/guides/*.md") if not page.name.endswith(CHINESE))
TRANSLATED = [ROOT / "README.md", ROOT / "docs/robot-workflows.md", *GUIDES]
SIDE = {".md": ", each rank", CHINESE: "，每个 rank"}
REQUIRED = ("task", "data")
LISTS = ("README.md", "docs/settings.md", "docs/metrics.md")
PARTS = (*(("", config) for config in (Run, *ALGORITHMS.values())), ("network.", NetworkConfig), ("env.", EnvConfig))
LISTED = re.compile(r"`([a-z]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
DEFINED = re.compile(r"(?<=def )\w+|(?<=self\.)\w+|^    \w+(?=:)", re.MULTILINE)


def in_chinese(page: Path) -> Path:
    return page.with_name(page.name.removesuffix(".md") + CHINESE)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_are_found():
    assert len(PAGES) > 20
    assert all(len(commands(page)) > 0 for page in TRANSLATED)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    broken = []
    for link in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_the_translation_holds_the_same_commands(page):
    assert blocks(in_chinese(page)) == blocks(page)


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_the_translation_has_the_same_shape(page):
    """As many headings, rows, points and pictures: nothing was left out, nothing added to one side alone."""

    def shape(text: str) -> list[int]:
        kinds = (r"^#+ ", r"^\|", r"^- ", r"!\[", r"^    \S")
        return [len(re.findall(kind, text, re.MULTILINE)) for kind in kinds]

    assert shape(prose(in_chinese(page))) == shape(prose(page))


@pytest.mark.parametrize("page", TRANSLATED, ids=name)
def test_the_translation_is_chinese(page):
    text = prose(in_chinese(page))
    chinese, words = len(re.findall(r"[\u4e00-\u9fff]", text)), len(re.findall(r"[A-Za-z]{2,}", re.sub(LINK, "", text)))
    assert chinese > 3 * words


@pytest.mark.parametrize(
    ("page", "config"),
    [
        *((f"docs/algorithms/{algo}.md", config()) for algo, config in ALGORITHMS.items()),
        ("docs/networks.md", NetworkConfig()),
        ("docs/settings.md", Run(task="any")),
        ("docs/settings.md", EnvConfig()),
        ("docs/algorithms/offline.md", OfflineDQNConfig()),
        ("docs/algorithms/offline-continuous.md", IQLConfig()),
        ("docs/algorithms/offline-continuous.md", TD3BCConfig()),
        ("docs/algorithms/offline-continuous.md", CQLConfig()),
        ("docs/logged-data.md", ScoreNetworkConfig()),
        ("docs/logged-data.md", OfflineRun(data="any")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_every_setting_is_documented_with_its_default(page, config):
    documented = {row[0].strip("`"): row[1:] for row in tables((ROOT / page).read_text(), "setting")}
    elsewhere = {"algorithm", "network", "env"} if isinstance(config, RunBase) else set()
    if isinstance(config, OfflineRun):
        elsewhere |= {field.name for field in fields(RunBase)} - set(vars(OfflineRun)["__annotations__"])
    for field in fields(config):
        if field.name in elsewhere:
            continue
        default, meaning = documented.pop(field.name)
        assert meaning, field.name
        if field.name not in REQUIRED:
            assert yaml.safe_load(default.strip("`")) == settings.plain(config)[field.name], field.name


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_pages_list_every_algorithm(algo):
    readme, settings_page, metrics = ((ROOT / page).read_text() for page in LISTS)
    assert f"algorithms/{algo}.md" in readme
    assert f"algorithms/{algo}.md" in settings_page
    assert f"`{algo}`" in next(line for line in settings_page.splitlines() if line.startswith("| `algo` |"))
    assert algo in re.findall(r"\w+", " ".join(re.findall("^### .*", metrics, re.MULTILINE)).lower())


@pytest.mark.parametrize("algo", OFFLINE_ALGORITHMS)
def test_settings_page_has_the_defaults_on_logged_data(algo):
    column = 1 + list(OFFLINE_ALGORITHMS).index(algo)
    rows = tables((ROOT / "docs/settings.md").read_text(), "of logged data")
    documented = {row[0].strip("`"): yaml.safe_load(row[column].strip("`")) for row in rows if row[column]}
    of_named_actions = {"reward_boost", "bcq_threshold"} if algo == "parametric_dqn" else set()
    defaults = settings.plain(OFFLINE_ALGORITHMS[algo]())
    assert documented == {name: value for name, value in defaults.items() if name not in of_named_actions}


def test_settings_of_preparing_have_their_defaults():
    rows = tables((ROOT / "docs/logged-data.md").read_text(), "`prepare --set`")
    assert {name.strip("`"): yaml.safe_load(default.strip("`")) for name, default, _ in rows} == settings.plain(
        NormParams()
    )


@pytest.mark.parametrize(
    ("page", "configs"),
    [
        *((f"docs/algorithms/{algo}.md", [config]) for algo, config in ALGORITHMS.items()),
        ("docs/networks.md", [NetworkConfig]),
        ("docs/settings.md", [Run, EnvConfig]),
        ("docs/algorithms/offline.md", [OfflineDQNConfig, CloningConfig]),
        ("docs/algorithms/offline-continuous.md", [IQLConfig, TD3BCConfig, CQLConfig]),
        ("docs/logged-data.md", [OfflineRun, ScoreNetworkConfig]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_setting_is_documented_that_does_not_exist(page, configs):
    documented = [row[0].strip("`") for row in tables((ROOT / page).read_text(), "setting")]
    assert set(documented) <= {field.name for config in configs for field in fields(config)}
    assert len(set(documented)) == len(documented)


@pytest.mark.parametrize(
    "page", [f"docs/algorithms/{name}.md" for name in (*ALGORITHMS, "offline", "offline-continuous")]
)
def test_equations_stand_in_the_code(page):
    rows = tables((ROOT / page).read_text(), "equation")
    assert len(rows) > 10
    for _, line, file in rows:
        assert line.strip("`") in (ROOT / "src/lockstep" / file.strip("`")).read_text(), line


def test_every_key_of_the_summary_is_documented():
    rows = tables((ROOT / "docs/metrics.md").read_text(), "key")
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row[0])} == set(empty_summary())


def test_every_entry_of_the_preflight_is_documented():
    from lockstep.preflight.compare import Host, Preflight

    host = Host(host="alpha", ranks=[0], cores=1, device="cpu", processor="x", interface=None)
    written = Preflight(rank=0, world_size=1, hosts=[host], versions={}).to_dict()
    rows = {row[0]: row[1] for row in tables((ROOT / "docs/metrics.md").read_text(), "entry")}
    assert {entry for cell in rows for entry in re.findall(r"`(\w+)`", cell)} == set(written)
    assert set(written["hosts"][0]) <= set(re.findall(r"`(\w+)`", rows["`hosts`"]))


def undefined(source: str) -> str:
    """Names that Python code uses and neither imports nor defines, as the linter tells them; also a syntax error."""
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise", "-"]
    done = subprocess.run(words, input=source, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=name)
def test_code_shows_its_imports(page):
    """A block that is a file stands alone; the others of a page continue each other."""
    shown = [block for block in blocks(page) if block.language == "python"]
    programs = [block.body for block in shown if block.file]
    for program in (*programs, "".join(block.body for block in shown if not block.file)):
        assert undefined(program) == ""


def test_a_missing_import_is_seen():
    assert "stream" in undefined("from lockstep import World\nprint(World(), stream(0, 'x'))\n")


@pytest.mark.parametrize("suffix", [".md", CHINESE])
def test_pong_of_the_guide_is_the_recipe(suffix):
    """What stands beside another library's numbers is what `lockstep train pong` does."""
    rows = tables((ROOT / f"docs/guides/coming-from-di-engine{suffix}").read_text(), f"DI-engine{SIDE[suffix]}")
    told = {name: yaml.safe_load(value) for row in rows for name, value in re.findall(r"`(\w+): ([^`]+)`", row[2])}
    run = pong.recipe()
    done = {name: value for part in (run, run.network, run.algorithm) for name, value in settings.plain(part).items()}
    assert len(told) > 20
    assert {name: done[name] for name in told} == pytest.approx(told)


@pytest.mark.parametrize("suffix", [".md", CHINESE])
@pytest.mark.parametrize(
    ("page", "tables_begin"),
    [
        ("rl-games", "| rl_games"),
        ("rsl-rl", "| rsl_rl"),
        ("skrl", "| skrl"),
        ("stable-baselines3", "| Stable-Baselines3, "),
        ("stable-baselines3", "| CleanRL"),
    ],
)
def test_guides_name_existing_settings(page, tables_begin, suffix):
    """Ours beside another library's: each name in the second column is a setting of a run, or a flag."""
    text = (ROOT / f"docs/guides/coming-from-{page}{suffix}").read_text()
    headers = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith(tables_begin)}
    rows = [row for header in headers for row in tables(text, header) if len(row) == 2]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)(?::[^`]*)?`", row[1])}
    run = {f"{part}{field.name}" for part, config in PARTS for field in fields(config)}
    foreign = {name for row in rows for name in re.findall(r"[a-z_]+", row[0])}
    assert len(named) > 15
    assert {name for name in named if name not in run and name not in foreign and name != "null"} == set()


def test_named_members_exist():
    """`Class.member` of a page is one of ours: its class is defined, and its member, maybe by a base class."""
    sources = [path.read_text() for path in ROOT.glob("src/lockstep/**/*.py")]
    classes = {found for text in sources for found in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    members = {found.strip() for text in sources for found in DEFINED.findall(text)}
    named = {found for page in PAGES for found in re.findall(r"`([A-Z]\w+)\.(\w+)`", page.read_text())}
    ours = {(owner, member) for owner, member in named if owner in classes}
    assert len(ours) > 20
    assert {f"{owner}.{member}" for owner, member in ours if member not in members} == set()


def test_decisions_are_listed():
    folder = ROOT / "docs/decisions"
    linked = LINK.findall((folder / "README.md").read_text())
    assert linked == sorted(path.name for path in folder.glob("0*.md"))


def test_the_index_lists_every_page():
    """Folders with an index of their own are linked by that; their other pages are that index's."""
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    own = {page.parent for page in ROOT.glob("docs/*/README.md")}
    pages = [page for page in PAGES if ROOT / "docs" in page.parents and CHINESE not in page.name and page != index]
    listed = [page for page in pages if page.parent not in own or page.name == "README.md"]
    assert [name(page) for page in listed if page not in linked] == []


def test_every_command_and_flag_is_on_the_page_of_commands_or_one_that_it_names():
    page = ROOT / "docs/commands.md"
    rows = tables(page.read_text(), "command")
    texts = {command: page.read_text() + _linked(page, row[2]) for row in rows for command in LISTED.findall(row[0])}
    parsers = _parts(parser({}))
    assert list(texts) and set(texts) == set(parsers)
    flags = [(command, spellings) for command, one in parsers.items() for spellings in _flags(one)]
    assert {one for one in flags if not any(spelling in texts[one[0]] for spelling in one[1])} == set()


def _linked(page: Path, cell: str) -> str:
    """The pages that a cell links to."""
    targets = (page.parent / link.partition("#")[0] for link in LINK.findall(cell) if not link.startswith("#"))
    return "".join(target.read_text() for target in targets)


def _parts(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below a parser, by name."""
    chosen = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(chosen[0].choices) if chosen else {}


def _flags(of: argparse.ArgumentParser) -> set[tuple[str, ...]]:
    """The flags of a command and of those below it, each with all its spellings; not those that users never type."""
    own = {tuple(action.option_strings) for action in of._actions if action.help != argparse.SUPPRESS}
    return (own - {(), ("-h", "--help")}).union(*(_flags(part) for part in _parts(of).values()))


def test_named_tests_exist():
    tests = {found for path in ROOT.glob("tests/**/*.py") for found in re.findall(r"def (test_\w+)", path.read_text())}
    named = {found for page in PAGES for found in re.findall(r"`(test_\w+)`", page.read_text())}
    assert named and named <= tests


@pytest.mark.parametrize("page", [ROOT / "README.md", in_chinese(ROOT / "README.md")], ids=name)
def test_ratios_are_those_of_the_results_page(page):
    """Measured anew? Then the tables of both READMEs follow."""
    ratios = re.findall(r"\d+\.\d+ \(\d+\.\d+-\d+\.\d+\)", page.read_text())
    assert ratios
    measured = "".join((ROOT / "docs/results" / page).read_text() for page in ("speed.md", "network.md"))
    assert [ratio for ratio in ratios if ratio not in measured] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_number_is_missing(page):
    assert "MEASURE" not in page.read_text()


@pytest.mark.parametrize("given", [["--help"], ["train", "--help"], ["recipe"], ["recipe", "cartpole"]], ids=" ".join)
def test_cheap_commands_run(given):
    done = subprocess.run([sys.executable, "-m", "lockstep.cli", *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cartpole" in done.stdout.lower() or "--ranks" in done.stdout


@pytest.mark.parametrize(
    ("algo", "mark", "tables"), [("ppo", "", PPO), ("ppo", " by task", BY_TASK["ppo"]), ("dqn", "", DQN)]
)
def test_the_defaults_are_those_of_the_code(algo, mark, tables):
    text = (ROOT / f"docs/algorithms/{algo}.md").read_text()
    table = text.partition(f"<!-- defaults of {algo}{mark} -->\n")[2].partition("\n<!--")[0]
    (_, *names), _, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines())
    documented = {
        column: {setting: yaml.safe_load(values[k]) for setting, *values in rows if values[k]}
        for k, column in enumerate(names)
    }
    assert documented == {name: _plain(settings) for name, settings in tables.items()}


def _plain(settings):
    """With lists in the place of tuples, as YAML has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
