"""Cards: what is on them, which files count, and the words in which a difference is told."""

import sys
from importlib import metadata

import pytest

from lockstep.preflight import identity as identities
from lockstep.preflight.identity import differences, format_ranks, identity, user_code

ONE = {"python": "3.11.7", "torch": "2.13.0", "lockstep": "0.1.0 (source aa)", "numpy": "2.4.6", "config": "c0"}
ONE |= {"code": None, "host": "alpha", "clock": 1.0}


def ranks(*shown, host="vm"):
    return {f"rank {i} ({host})": one for i, one in enumerate(shown)}


def test_a_card_says_versions_config_and_facts():
    import numpy

    shown = identity("seed: 0", "mine.py 12")
    assert shown["python"] == ".".join(map(str, sys.version_info[:3]))
    assert shown["numpy"] == numpy.__version__
    assert shown["lockstep"].startswith(metadata.version("lockstep-rl") + " (source ")
    assert shown["code"] == "mine.py 12"
    assert shown["config"] == identity("seed: 0")["config"] != identity("seed: 1")["config"]
    assert shown["host"]
    assert shown["clock"] > 1e9


def test_a_package_that_is_not_installed_is_told_as_such(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(identities, "version", version)
    assert identity("")["torch"] == "not installed"


def test_equal_cards_differ_in_nothing_whatever_their_facts():
    other = ONE | {"host": "beta", "clock": 99.0, "settings": {"seed": 1}}
    assert differences({"node 0 (alpha)": ONE, "node 1 (beta)": other}) is None
    assert differences({"node 0": ONE}) is None


@pytest.mark.parametrize("name", ["python", "torch", "lockstep", "numpy"])
def test_another_version_is_named_with_who_has_it(name):
    said = differences({"node 0 (alpha)": ONE, "node 1 (beta)": ONE | {name: "0.0.1"}})
    expected = f"node 1 (beta) differs from node 0 (alpha) in {name} (0.0.1 instead of {ONE[name]})"
    assert said == f"{expected}; install the same versions everywhere"


def test_another_config_is_named_by_its_settings_where_they_are_told():
    other = ONE | {"config": "c1"}
    said = differences(ranks(ONE, other, host="vm"))
    assert said == "rank 1 (vm) differs from rank 0 (vm) in config; start all with the same command"
    told = differences(
        ranks(ONE | {"settings": {"seed": 0, "gamma": 0.9}}, other | {"settings": {"seed": 5, "gamma": 0.9}})
    )
    assert told == "rank 1 (vm) differs from rank 0 (vm) in seed (5 instead of 0); start all with the same command"
    half = differences(ranks(ONE | {"settings": {"seed": 0}}, other))
    assert half == said, "the settings of one alone were compared"


def test_another_file_is_named():
    a, b = ONE | {"code": "env.py aa; pong.py 11"}, ONE | {"code": "env.py aa; pong.py 22"}
    assert differences(ranks(a, b)) == (
        "rank 1 (vm) differs from rank 0 (vm) in pong.py (22 instead of 11); give every machine the same files"
    )
    assert "pong.py (none instead of 11)" in (differences(ranks(a, ONE | {"code": "env.py aa"})) or "")
    assert "in env.py (none instead of aa) and pong.py (none instead of 11)" in (differences(ranks(a, ONE)) or "")
    assert "in code (22 instead of 11)" in (differences(ranks(ONE | {"code": "11"}, ONE | {"code": "22"})) or "")


def test_the_most_are_the_measure_and_a_tie_goes_to_the_first():
    odd = ONE | {"torch": "2.12.0"}
    assert (differences(ranks(odd, ONE, ONE)) or "").startswith("rank 0 (vm) differs from ranks 1-2 (vm) in torch")
    assert (differences(ranks(ONE, ONE, odd, odd)) or "").startswith("ranks 2-3 (vm) differ from ranks 0-1 (vm) in")


def test_a_table_tells_what_a_line_cannot():
    a = ONE | {"torch": "2.12.0", "python": "3.12.1"}
    b = ONE | {"config": "c1", "numpy": "1.26.4"}
    said = differences(ranks(ONE, ONE, a, b)) or ""
    line, _, table = said.partition("\n\n")
    assert line.startswith("rank 2 (vm) and rank 3 (vm) differ from ranks 0-1 (vm) in python, torch, numpy and 1 more;")
    assert line.endswith("install the same versions everywhere; start all with the same command")
    assert table.splitlines() == [
        "          ranks 0-1 (vm)  rank 2 (vm)  rank 3 (vm)",
        "  python  3.11.7          3.12.1       3.11.7",
        "  torch   2.13.0          2.12.0       2.13.0",
        "  numpy   2.4.6           2.4.6        1.26.4",
        "  config  c0              c0           c1",
    ]


def test_people_are_told_in_ranges():
    assert format_ranks(["rank 3", "rank 1", "rank 2", "rank 7"]) == "ranks 1-3, 7"
    assert format_ranks(["node 1 (beta)"]) == "node 1 (beta)"
    assert format_ranks([f"rank {i} ({'ab'[i // 4]})" for i in range(8)]) == "ranks 0-3 (a) and ranks 4-7 (b)"
    many = [f"rank {i} (n{i // 8})" for i in range(1024)]
    assert format_ranks(many) == "ranks 0-1023 (128 hosts)"
    assert format_ranks(["the main node", "rank 1"]) == "the main node, rank 1"


def test_only_files_of_the_users_own_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    loaded = {name for name in sys.modules if name.startswith("lockstep_file_")}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    assert (
        user_code(["CartPole-v1", "lockstep.envs.cartpole:Cartpole", "gymnasium:CartPole-v1", "nowhere:Class"]) is None
    )
    (tmp_path / "mine.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "pack" / "inner.py").write_text("x = 1\n")
    said = user_code(["mine.py:recipe", "mine:Class", "pack.inner:Env"]) or ""
    assert [entry.split()[0] for entry in said.split("; ")] == ["inner.py", "mine.py"]
    (tmp_path / "mine.py").write_text("x = 2\n")
    changed = user_code(["mine:Class", "pack.inner:Env"]) or ""
    assert changed.split("; ")[0] == said.split("; ")[0]
    assert changed.split("; ")[1] != said.split("; ")[1]


def test_files_loaded_by_name_and_the_script_count(tmp_path, monkeypatch):
    from lockstep.envs.load import load_object

    (tmp_path / "loaded_here.py").write_text("def recipe():\n    pass\n")
    (tmp_path / "script_here.py").write_text("x = 1\n")
    load_object(f"{tmp_path / 'loaded_here.py'}:recipe", "recipe")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "script_here.py"), raising=False)
    said = user_code() or ""
    assert "loaded_here.py " in said
    assert "script_here.py " in said


def test_our_own_source_counts(monkeypatch, tmp_path):
    """Editable installs of one version may differ."""
    package = tmp_path / "lockstep"
    package.mkdir()
    monkeypatch.setattr(identities, "__file__", str(package / "card.py"))
    digests = set()
    for text in ("x = 1\n", "x = 2\n"):
        (package / "card.py").write_text(text)
        identities._own_source.cache_clear()
        digests.add(identity("")["lockstep"])
    identities._own_source.cache_clear()
    assert len(digests) == 2
