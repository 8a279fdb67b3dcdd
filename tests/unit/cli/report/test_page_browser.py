"""The page in a real browser: no error in the console, no request, readable at the width of a phone and of a desktop.

Screenshots are written to the folder `LOCKSTEP_TEST_ARTIFACTS`, if it is set.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_page import RUN, make_run

from lockstep.cli import main as cli
from lockstep.run import override

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium"),
]
THEMES = {"dark": 0, "light": 1}
"""Values of Chromium's setting preferredColorScheme."""
OWN_REQUEST = "not an origin"
"""Initiator of requests that the browser makes for itself."""
MEASURE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, svg, .skip"));
  const right = Math.max(...wide.map((e) => e.getBoundingClientRect().right));
  const buttons = [...document.querySelectorAll("button")].filter((e) => e.offsetHeight && e.ariaLabel);
  console.log(`measured ${right <= innerWidth} ${buttons.length} ${document.querySelectorAll("svg").length}`);
  buttons.forEach((button) => button.click());
});</script>"""


def opened(page, tmp_path, width=1200, height=2400, *options):
    """Open the page; returns console messages, URLs that it requested, and the screenshot."""
    log, picture = tmp_path / "net.json", tmp_path / f"{page.stem}-{width}.png"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", "--virtual-time-budget=3000"]
    command += [f"--screenshot={picture}", f"--window-size={width},{height}", *options, page.absolute().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    messages = re.findall(r"CONSOLE.*?\] \"(.*)\"", done.stderr)
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    urls = {event["url"] for event in events if event.get("initiator", OWN_REQUEST) != OWN_REQUEST and "url" in event}
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("L"))
    if folder := os.environ.get("LOCKSTEP_TEST_ARTIFACTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, folder)
    return messages, {url for url in urls if not url.startswith(("file:", "data:", "blob:"))}, pixels


@pytest.fixture
def report(here):
    """A page of two groups, and the same without its content security policy and with a script that measures it."""
    for seed in range(3):
        for rate in (1e-3, 1e-4):
            run = override(RUN, {"seed": seed, "learning_rate": rate})
            make_run(f"runs/{rate}-{seed}", run, ranks=2, returns=[1e4 * rate * i + seed for i in range(50)])
    assert cli.main(["report", "--html", "report.html"]) == 0
    text = Path("report.html").read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", text)
    Path("measured.html").write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    return here / "report.html"


def test_page_makes_no_request_and_no_console_message(report, tmp_path):
    messages, urls, picture = opened(report, tmp_path)
    assert messages == [] and urls == set()
    assert picture.std() > 10  # not an empty page


@pytest.mark.parametrize(("theme", "lowest", "highest"), [("light", 200, 255), ("dark", 0, 60)])
def test_page_follows_the_theme_of_the_reader(report, tmp_path, theme, lowest, highest):
    page = shutil.copy(report, report.with_name(f"{theme}.html"))
    messages, _, picture = opened(
        Path(page), tmp_path, 1200, 2400, f"--blink-settings=preferredColorScheme={THEMES[theme]}"
    )
    assert messages == [] and lowest <= np.median(picture) <= highest
    assert picture.std() > 10


def test_page_fits_a_phone_of_390_pixels(report, tmp_path):
    phone = report.with_name("phone.html")  # a frame, since the narrowest window of headless Chromium is 500
    phone.write_text(
        '<body style="margin:0"><iframe src="measured.html" style="border:0;width:390px;height:4000px"></iframe>'
    )
    messages, _, _ = opened(phone, tmp_path, 500, 4000)
    assert [message.split()[1] for message in messages] == ["true"]


def test_browser_test_sees_requests_and_errors(report, tmp_path):
    bad = report.with_name("bad.html")
    bad.write_text('<img src="http://192.0.2.1/x.png"><script>console.log("hello"); missing()</script>')
    messages, urls, _ = opened(bad, tmp_path, 400, 400)
    assert urls == {"http://192.0.2.1/x.png"}
    assert messages[0] == "hello" and "missing is not defined" in messages[1]


@pytest.mark.parametrize("width", [500, 1200])  # the narrowest window of headless Chromium is 500
def test_nothing_leaves_the_page_and_each_chart_can_be_saved(report, tmp_path, width):
    messages, _, _ = opened(report.with_name("measured.html"), tmp_path, width, 3000)
    assert len(messages) == 1
    fits, buttons, charts = messages[0].removeprefix("measured ").split()
    assert fits == "true" and int(buttons) == 2 * int(charts) > 0


def test_all_content_is_there_without_scripts(report, tmp_path):
    _, _, scripted = opened(report, tmp_path, 1200, 1500)
    _, _, plain = opened(report, tmp_path, 1200, 1500, "--blink-settings=scriptEnabled=false")
    assert (plain < 128).sum() > 0.8 * (scripted < 128).sum()
