"""The page in headless Chromium: no console message, nothing wider than the window, on a phone and on a desktop."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasmo.measure.report import Lineage, render
from elasmo.measure.run_folder import read

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--dump-dom",
)  # fmt: skip
FRAME = """<body><iframe src="report.html" style="width:{width}px;height:800px;border:0"></iframe><p id="measured"></p>
<script>document.querySelector('iframe').onload = (event) => {{
  const page = event.target.contentDocument;
  const lines = [...page.querySelectorAll('svg path:not(.dots)')];
  const empty = lines.filter((path) => path.getTotalLength() === 0);
  const pictures = [...page.images].filter((image) => image.naturalWidth === 0);
  const found = [page.documentElement.scrollWidth, page.body.innerText.length, empty.length, pictures.length];
  document.title = found.join(' ');
}};</script></body>"""


@pytest.fixture
def site(run: Path) -> Iterator[tuple[Path, str]]:
    (run / "report.html").write_text(render(read(run), Lineage(), [("Serve it", "elasmo serve")]), encoding="utf-8")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(run))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield run, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.full
@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_fits_and_logs_nothing(site: tuple[Path, str], tmp_path: Path, width: int) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "Debian's chromium is not installed: apt-get install chromium"
    folder, url = site
    (folder / "frame.html").write_text(FRAME.format(width=width))
    command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 40},900"]
    done = subprocess.run([*command, f"{url}/frame.html"], capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    title = re.search(r"<title>(\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert title, "the page did not load"
    scroll_width, characters, empty_paths, broken_pictures = map(int, title.groups())
    assert scroll_width <= width
    assert characters > 1000
    assert (empty_paths, broken_pictures) == (0, 0)
