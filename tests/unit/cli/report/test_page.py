"""`lockstep report --html`: groups over seeds, curves, scores, escaping, colours, and the page as a whole."""

import itertools
import json
import os
import re
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page_runs import RUN, make_run

from lockstep.cli import main as cli
from lockstep.cli.report.page import chart, load, page
from lockstep.cli.report.page.groups import band, final_scores, group_runs
from lockstep.cli.report.page.load import MAX_POINTS, read_page_run, read_page_runs
from lockstep.cli.report.page.run_tables import settings_section
from lockstep.cli.report.page.time_section import time_section
from lockstep.run import OfflineRun, override


def make_groups(tmp_path, *changes):
    runs = [
        make_run(tmp_path / f"{i}-{seed}", override(RUN, {"seed": seed, **change}))
        for i, change in enumerate(changes)
        for seed in range(2)
    ]
    return group_runs([read_page_run(path) for path in runs])


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path):
    groups = make_groups(tmp_path, {}, {"learning_rate": 1e-3})
    assert [len(group.runs) for group in groups] == [2, 2]
    assert [group.label for group in groups] == ["learning_rate=0.00025", "learning_rate=0.001"]


def test_labels_leave_out_what_most_groups_share(tmp_path):
    groups = make_groups(tmp_path, {}, {"learning_rate": 1e-3}, {"gamma": 0.9})
    labels = [group.label for group in groups]
    assert labels == ["learning_rate=0.00025, gamma=0.99", "learning_rate=0.001", "gamma=0.9"]


def test_labels_have_short_numbers_and_no_trackers(tmp_path):
    groups = make_groups(tmp_path, {"learning_rate": 0.0012520653814999472}, {"trackers": ["my.py:Tracker"]})
    assert [group.label for group in groups] == ["learning_rate=0.00125207", "learning_rate=0.00025"]


def test_long_labels_of_a_legend_keep_the_number_of_runs():
    line = chart.Line(label=f"{'x' * 80} (3 runs)", x=np.arange(2.0), y=np.arange(2.0), style=0)
    assert re.search(r"xxx… \(3 runs\)</text>", chart.line_chart("t", "d", ("x", "y"), [line]))


def test_advice_names_few_of_many_groups(tmp_path):
    groups = make_groups(tmp_path, *({"gamma": 0.9 + i / 1000} for i in range(6)), {"env.vectorization": "sync"})
    (_, labels), _ = time_section(groups)["advice"]
    assert labels.endswith("; and 3 more") and labels.count(";") == 3


def test_long_labels_lose_settings_that_tell_no_group_apart(tmp_path):
    dqn = {"algo": "dqn", "learning_rate": 1e-4, "num_steps": 1, "max_grad_norm": 10.0, "num_envs": 8}
    groups = make_groups(tmp_path, {"gamma": 0.9}, {"gamma": 0.98, "learning_rate": 1e-3}, {"gamma": 0.99}, dqn)
    assert [group.label for group in groups] == [
        "ppo, gamma=0.9",
        "ppo, gamma=0.98",
        "ppo, gamma=0.99",
        "dqn, num_steps=1, gamma=0.99",
    ]


def test_bookkeeping_is_in_labels_only_if_nothing_else_differs(tmp_path):
    groups = make_groups(tmp_path, {"log_every": 5, "gamma": 0.9}, {"log_every": 6})
    assert [group.label for group in groups] == ["gamma=0.9", "gamma=0.99"]
    groups = make_groups(tmp_path / "more", {"log_every": 5}, {"log_every": 6})
    assert [group.label for group in groups] == ["log_every=5", "log_every=6"]


def test_runs_of_the_same_name_show_the_directory_above(tmp_path):
    paths = [make_run(tmp_path / name) for name in ("a/seed_0", "b/seed_0", "b/seed_1")]
    assert [run.name for run in read_page_runs(paths)] == ["a/seed_0", "b/seed_0", "seed_1"]


def test_label_of_logged_data_has_no_empty_task(tmp_path):
    online = make_run(tmp_path / "online", override(RUN, {"algo": "dqn"}))
    offline = make_run(tmp_path / "offline", OfflineRun(data="data"))
    labels = [group.label for group in group_runs([read_page_run(path) for path in (online, offline)])]
    assert "null" not in " ".join(label.partition(", ")[0] for label in labels)
    assert labels[0].startswith("CartPole-v1") and labels[1].startswith("data")


def test_numbers_of_ranks_are_not_mixed(tmp_path):
    paths = [make_run(tmp_path / str(ranks), ranks=ranks) for ranks in (1, 2)]
    groups = group_runs([read_page_run(path) for path in paths])
    assert [group.label for group in groups] == ["ranks=1", "ranks=2"]


def test_copy_of_a_run_is_no_further_sample(tmp_path):
    paths = [make_run(tmp_path / name, override(RUN, {"seed": seed})) for name, seed in (("a", 0), ("b", 1))]
    shutil.copytree(paths[0], tmp_path / "copy")
    again = make_run(tmp_path / "again", override(RUN, {"seed": 0}), params_fingerprint="c3")
    runs = read_page_runs([*paths, tmp_path / "copy", again])
    (group,) = group_runs(runs)
    assert [run.name for run in group.runs] == ["a", "b", "again"]
    assert "1 group of runs that differ only in the seed, copy not counted: the same run again" in page.render(
        runs, tmp_path
    )


def test_finished_run_keeps_its_last_value_and_killed_run_does_not(tmp_path):
    long = make_run(tmp_path / "long", returns=(10.0,) * 5)
    short = make_run(tmp_path / "short", override(RUN, {"seed": 1}), returns=(30.0, 30.0), status="solved")
    killed = make_run(tmp_path / "killed", override(RUN, {"seed": 2}), returns=(70.0, 70.0), status=None)
    runs = [read_page_run(path) for path in (long, short, killed)]
    (group,) = group_runs([replace_ranks(run) for run in runs])
    found = band(group, "training", "steps")
    assert found is not None and found.low is not None
    assert (found.x[0], found.x[-1]) == (1000, 5000)
    assert found.iqm[0] == pytest.approx(110 / 3)
    assert found.iqm[-1] == pytest.approx(20.0)
    assert found.low[-1] == pytest.approx(10.0)
    assert band(group, "training", "seconds").x[-1] == pytest.approx(10.0)
    assert final_scores(group, "training") == [10.0, 30.0, 70.0]


def replace_ranks(run):
    return replace(run, time=replace(run.time, found=replace(run.found, ranks=1)))


def test_group_curve_ends_where_most_runs_have_no_data(tmp_path):
    paths = [
        make_run(tmp_path / str(seed), override(RUN, {"seed": seed}), returns=(1.0,) * count, status="failed")
        for seed, count in enumerate((2, 2, 6))
    ]
    (group,) = group_runs([read_page_run(path) for path in paths])
    found = band(group, "training", "steps")
    assert found.x[~np.isnan(found.iqm)].max() <= 2000 < found.x[-1]


def test_part_of_a_curve_with_one_run_left_has_no_interval(tmp_path):
    failed = make_run(tmp_path / "failed", returns=(10.0, 10.0), status="failed")
    whole = make_run(tmp_path / "whole", override(RUN, {"seed": 1}), returns=(30.0,) * 4)
    (group,) = group_runs([replace_ranks(read_page_run(path)) for path in (failed, whole)])
    found = band(group, "training", "steps")
    assert (found.low[0], found.high[0]) == (10.0, 30.0)
    assert found.iqm[-1] == 30.0 and np.isnan([found.low[-1], found.high[-1]]).all()


def test_single_run_has_no_band(tmp_path):
    (group,) = group_runs([read_page_run(make_run(tmp_path / "one"))])
    found = band(group, "training", "steps")
    assert found.low is None and found.iqm[-1] == 20.0


def test_curves_are_thinned_and_keep_both_ends(tmp_path):
    run = read_page_run(make_run(tmp_path / "long", returns=[float(i) for i in range(3000)]))
    steps = run.curves["training"].steps
    assert len(steps) == MAX_POINTS and (steps[0], steps[-1]) == (1000, 3_000_000)


def lines_of(path, name, *lines):
    (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves_of_a_loop_whose_later_start_counts_time_from_0_have_no_time(tmp_path):
    name = "episode/return_mean_100"
    seconds = (1, 2, 3, 4, 5, 6, 0.5, 1.5, 2.5, 3.5)
    for seed, times in enumerate((seconds, range(1, 11))):
        path = make_run(tmp_path / str(seed), override(RUN, {"seed": seed}))
        lines = [{"step": 1000 * i, "time_s": time, name: 10.0 * i} for i, time in enumerate(times, 1)]
        lines_of(path, "metrics.jsonl", *lines)
        lines_of(path, "evaluations.jsonl", {"step": 4000, "returns": [5.0]}, {"step": 9000, "returns": [6.0]})
    runs = [read_page_run(tmp_path / name) for name in "01"]
    for source in ("training", "evaluation"):
        assert np.isnan(runs[0].curves[source].seconds).all() and np.isfinite(runs[1].curves[source].seconds).all()
        (group,) = group_runs(runs[:1])
        assert band(group, source, "seconds") is None and band(group, source, "steps") is not None
    (group,) = group_runs(runs)
    assert band(group, "training", "seconds").x[-1] == 10
    assert "training" in page.render(runs[:1], tmp_path)


def test_steps_that_a_later_start_makes_again_are_those_of_the_later_start(tmp_path):
    path = make_run(tmp_path / "run")
    steps = (1000, 2000, 3000, 4000, 2500, 3000)
    lines_of(
        path,
        "metrics.jsonl",
        *({"step": step, "time_s": i, "episode/return_mean_100": 10.0 * i} for i, step in enumerate(steps)),
    )
    curve = read_page_run(path).curves["training"]
    assert curve.steps.tolist() == [1000, 2000, 2500, 3000] and curve.values.tolist() == [0, 10, 40, 50]
    assert curve.seconds.tolist() == [0, 1, 4, 5]


def test_evaluations_are_placed_in_time_by_the_metrics(tmp_path):
    path = make_run(tmp_path / "run", returns=(1.0, 2.0, 3.0))
    lines = [{"step": 1500, "returns": [4.0, 6.0], "lengths": [1, 1]}, {"step": 3000, "returns": [7.0], "lengths": [1]}]
    (path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = read_page_run(path).curves["evaluation"]
    assert curve.values.tolist() == [5.0, 7.0] and curve.seconds.tolist() == [3.0, 6.0]


class Page(HTMLParser):
    """Collects elements and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def tags(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture
def hostile(here):
    """Runs whose names, settings and errors are HTML."""
    attack = "<script>alert(1)</script>"
    task = replace(RUN, task=f"mine.py:{attack}")
    make_run("runs/one<img src=x>", task, ranks=2, waits=[1.0, 30.0])
    make_run("runs/two", override(task, {"seed": 1}), ranks=2, status="failed", error=f'rank 1: {attack} "&amp;')
    other = make_run("runs/three", override(task, {"activation": "relu"}), returns=(5.0, 9.0))
    (other / "videos").mkdir()
    (other / "videos" / 'step_5"onclick="x.gif').write_bytes(b"GIF89a")
    return here


def test_page_is_complete_escaped_and_without_requests(hostile, capsys):
    assert cli.main(["report", "--html", "pages/report.html"]) == 2
    assert "--html pages/report.html cannot be written" in capsys.readouterr().err
    Path("pages").mkdir()
    assert cli.main(["report", "--html", "pages/report.html"]) == 0
    text = Path("pages/report.html").read_text(encoding="utf-8")
    found = Page(text)
    assert len(found.tags("script")) == 1 and not found.tags("img")
    assert "mine.py:<script>alert(1)</script>" in found.text
    for attributes in (attributes for _, attributes in found.elements):
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
    links = [attributes["href"] for attributes in (*found.tags("a"), *found.tags("link"))]
    assert not [link for link in links if "//" in link]
    assert "../runs/three/videos/step_5%22onclick%3D%22x.gif" in links
    (policy,) = [entry["content"] for entry in found.tags("meta") if "http-equiv" in entry]
    assert policy.startswith("default-src 'none'")
    assert len(found.tags("svg")) == sum(attributes.get("role") == "img" for attributes in found.tags("svg")) > 4
    assert len(found.tags("table")) == len(found.tags("caption"))
    for words in ("Best:", "Performance profile", "Rank 0 on node is the slowest", "equal on 2 ranks", "activation"):
        assert words in found.text
    assert len(text) < 200_000


def test_damaged_runs_and_names_that_are_not_utf8_have_a_page(here, monkeypatch):
    make_run("runs/good")
    named = make_run("runs/named", versions=["1.0"], env_steps="abc", wall_time_s="long", ranks=2)
    named.rename(os.fsdecode(b"runs/caf\xe9"))
    odd = make_run("runs/odd")
    (odd / "preflight.json").write_text(json.dumps({"hosts": [{"ranks": 5}, 3], "versions": 7}))
    make_run("runs/bad")
    make_run("runs/huge", override(RUN, {"seed": 1}), returns=(1e308, -1e308, 3.0))
    found_run = load.found_run

    def broken(path, *more):
        if path.name == "bad":
            raise KeyError("odd")
        return found_run(path, *more)

    monkeypatch.setattr(load, "found_run", broken)
    assert cli.main(["report", "--html", "report.html"]) == 0
    text = Path("report.html").read_text(encoding="utf-8")
    assert "caf?" in text and "runs/caf%E9" in text and "KeyError: &#39;odd&#39;" in text and "damaged" in text


def test_a_run_without_settings_hides_no_settings_of_the_others(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), override(RUN, {"seed": seed}))
    (make_run(tmp_path / "own") / "run.yaml").unlink()
    runs = [read_page_run(tmp_path / name) for name in ("own", "0", "1")]
    found = settings_section(runs, group_runs(runs))
    assert found["shared"]["task"] == "CartPole-v1" and found["names"] == ["ranks"]
    assert settings_section(runs[:1], group_runs(runs[:1]))["shared"] == {}


def test_html_is_refused_with_the_other_outputs(hostile, capsys):
    assert cli.main(["report", "--html", "x.html", "--json"]) == 2
    assert "--json is for the table of runs" in capsys.readouterr().err
    assert cli.main(["report", "runs", "--html", "x.html", "--predict"]) == 2
    assert cli.main(["report", "--html", "runs"]) == 2
    assert "--html runs is a directory; name a file in it" in capsys.readouterr().err


def test_more_groups_than_colors_are_drawn_in_grey(tmp_path):
    paths = [
        make_run(tmp_path / str(i), override(RUN, {"gamma": 0.9 + i / 1000}), returns=(1.0, float(i)))
        for i in range(chart.NUM_STYLES + 2)
    ]
    text = page.render([read_page_run(path) for path in paths], tmp_path)
    assert "Grey: 2 groups with lower final scores." in text


def test_run_without_results_has_a_page(tmp_path):
    path = make_run(tmp_path / "new", returns=(), status=None)
    text = page.render([read_page_run(path)], tmp_path)
    assert "No returns yet." in text and "No run recorded its phases." in text


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 100, [0, 20, 40, 60, 80, 100]), (-1, 1, [-1, -0.5, 0, 0.5, 1]), (3, 3, [3])]
)
def test_ticks_are_round_numbers(low, high, expected):
    assert chart.ticks(low, high) == pytest.approx(expected)


# Machado et al. (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], LUMINANCE, [0.0193, 0.1192, 0.9505]])


def palettes():
    """Linear RGB of the colours of each theme."""
    style = (Path(page.__file__).parent / "style.css").read_text(encoding="utf-8")
    for block in re.findall(r":root \{(.*?)\}", style, re.S):
        yield {name: linear(code) for name, code in named(block)}


def linear(code):
    coded = np.array([int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def named(block):
    return re.findall(r"--(\w+): #(\w{6})", block)


def lab(linear):
    x, y, z = np.cbrt(TO_XYZ @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def labels_of_x(x, **more):
    line = chart.Line(label="a", x=np.array(x, float), y=np.array([1.0, 2.0]), style=0)
    return re.findall(r'class="tick middle".*?>(.*?)<', chart.line_chart("t", "d", ("x", "y"), [line], **more))


def test_labels_of_an_axis_differ_and_ranks_are_whole():
    labels = labels_of_x([499.99, 500.0])
    assert len(labels) == len(set(labels)) > 2
    assert labels_of_x([1, 2], whole=True) == ["1", "2"]


def test_numbers_in_the_bars_of_time_are_legible_in_each_theme():
    style = (Path(page.__file__).parent / "style.css").read_text(encoding="utf-8")
    (dark,) = re.findall(r"\.inside \{ fill: #(\w{6}); \}", style)
    of_parts = dict(re.findall(r"\.p(\d)(?:, [.\w]+)* \{ color: var\(--(\w+)\)", style))
    on_dark_text = re.findall(r"\.chart \.p(\d) \.inside", style)
    assert len(of_parts) == 8
    for colors in palettes():
        for part, name in of_parts.items():
            text = linear(dark) if part in on_dark_text else colors["paper"]
            ratio = (LUMINANCE @ text + 0.05) / (LUMINANCE @ colors[name] + 0.05)
            assert max(ratio, 1 / ratio) > 4.2, (part, name)


def test_lines_are_told_apart_in_each_theme_by_color_blind_readers():
    themes = list(palettes())
    assert len(themes) == 2
    for colors in themes:
        lines = [colors[f"s{i}"] for i in range(chart.NUM_STYLES)]
        paper = LUMINANCE @ colors["paper"] + 0.05
        contrasts = [(LUMINANCE @ line + 0.05) / paper for line in lines]
        assert min(max(ratio, 1 / ratio) for ratio in contrasts) >= 3  # WCAG 1.4.11
        text = (LUMINANCE @ colors["ink"] + 0.05) / paper, (LUMINANCE @ colors["soft"] + 0.05) / paper
        assert min(max(ratio, 1 / ratio) for ratio in text) >= 4.5  # WCAG 1.4.3
        for matrix in VISION.values():
            seen = [lab(np.clip(np.asarray(matrix) @ line, 1e-6, 1)) for line in lines]
            assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15


@pytest.mark.slow
def test_hundred_long_runs_take_seconds(tmp_path):
    """A tenth of 100 runs of 10 000 lines with 40 metrics, in processor time; the whole takes under 5 s."""
    metrics = {f"some/metric_{i}": i / 7 for i in range(40)} | {"episode/return_mean_100": 1.0}
    lines = "".join(json.dumps({"step": i, "time_s": i / 10, **metrics}) + "\n" for i in range(10_000))
    paths = [make_run(tmp_path / str(i), override(RUN, {"seed": i}), returns=()) for i in range(10)]
    for path in paths:
        (path / "metrics.jsonl").write_text(lines)
    start = time.process_time()
    text = page.render([read_page_run(path) for path in paths], tmp_path)
    assert time.process_time() - start < 1.0
    assert len(text) < 300_000
