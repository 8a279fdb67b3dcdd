"""The built site in a real browser: no console message, no request to another host, nothing wider than the window.

`make docs` builds the site and runs this file; without a built site or a browser it skips.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest
from pages import ROOT

SITE = ROOT / "site"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="needs the built site: make docs"),
]
# Each page in a frame of a phone's and of a desktop's width, one after another.
VISIT = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body><script>
(async () => {
  for (const width of [390, 1280]) for (const page of PAGES) {
    if (width > 390 && page.startsWith("zh/")) continue;
    const frame = document.createElement("iframe");
    frame.style.cssText = `width: ${width}px; height: 800px; border: 0`;
    frame.src = page;
    await new Promise((loaded) => { frame.onload = loaded; document.body.append(frame); });
    const found = frame.contentDocument.documentElement.scrollWidth;
    if (found > width) console.log(`${page} is ${found} wide in ${width}`);
    frame.remove();
  }
  console.log("visited");
})();
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log; `/visit` is the page that visits all others."""

    def do_GET(self):
        if self.path != "/visit":
            return super().do_GET()
        body = VISIT.replace("PAGES", json.dumps(pages())).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def pages():
    """The built pages, without those of source files."""
    built = (str(path.relative_to(SITE)) for path in sorted(SITE.rglob("*.html")))
    return [page for page in built if not re.search(r"\.(py|jsonl?|yaml)\.html$|404", page)]


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def visited(url, folder, timeout_s=400):
    """Console messages of a page until it prints `visited`, and the URLs that it and its frames requested."""
    log = folder / "net.json"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    command += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    command += [f"--log-net-log={log}", "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", url]
    messages = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as browser:
        deadline = threading.Timer(timeout_s, browser.kill)
        deadline.start()
        for line in browser.stderr:
            messages += re.findall(r"CONSOLE.*?\] \"(.*)\"", line)
            if messages[-1:] == ["visited"]:
                break
        deadline.cancel()
        browser.terminate()
    # Requests that the browser makes for itself have no origin. A log that was cut short has its whole lines.
    requests = (line for line in log.read_text().splitlines() if '"initiator":' in line and "not an origin" not in line)
    return messages, {found[1] for line in requests if (found := re.search(r'"url":"([^"]*)"', line))}


def test_pages_fit_the_window_and_request_nothing_elsewhere(server, tmp_path):
    messages, urls = visited(f"{server}/visit", tmp_path)
    assert messages == ["visited"]
    assert len(urls) > len(pages()) > 100
    assert {url for url in urls if not url.startswith((server, "data:", "blob:"))} == set()


def test_requests_to_other_hosts_are_seen(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://192.0.2.1/x.png"><script>setTimeout(() => console.log("visited"), 500)</script>')
    messages, urls = visited(bad.as_uri(), tmp_path)
    assert (messages, urls) == (["visited"], {"http://192.0.2.1/x.png"})
