"""The Virtual Microscope: `shunt microscope` and its page, in headless Chromium.

Screenshots go to build/microscope, to be looked at.
"""

import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from harness import modes

BUILD = modes.ROOT / "build"
SHOTS = BUILD / "microscope"
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
# The last four: on a machine without a network Chromium would wait for it.
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]
LOCAL = re.compile(r"Serving at (http://127\.0\.0\.1:\d+/)")


@pytest.fixture(scope="module")
def python():
    """A Python that has the package, with what the microscope needs: the stage `filters` of scripts/test.sh makes it."""
    exe = os.environ.get("FILTERS_PYTHON")
    assert exe, "FILTERS_PYTHON names no Python that has the package: TEST_ONLY='bootstrap filters' scripts/test.sh makes one"
    return Path(exe)


def quietly(command, **how):
    """Runs a command; what it says is shown if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def env():
    """What is fetched is kept in build/, for the next run."""
    return os.environ | {"XDG_CACHE_HOME": str(BUILD / "cache")}


@contextmanager
def serving(python, env, *args):
    """A microscope that serves; its address. Ends well by SIGTERM."""
    command = [python, "-P", "-m", "shunt.microscope", "--port", "0", *args]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = None
            for line in process.stdout:
                if found := LOCAL.search(line):
                    url = found[1]
                    break
            assert url, "it ended without serving"
            yield url
        finally:
            process.terminate()
            status = process.wait(20 * PATIENCE)
    assert status == 0


@pytest.fixture
def page(need, tmp_path):
    """A page of a browser: any error of its scripts fails the test."""
    from playwright.sync_api import sync_playwright

    errors = []
    with sync_playwright() as play:
        # Its policy forbids the evaluation of text, which is how tests look into it.
        context = play.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=need("chromium"), headless=True, args=FLAGS, bypass_csp=True,
            viewport={"width": 1600, "height": 1000})
        page = context.pages[0]
        page.set_default_timeout(30000 * PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        yield page
        context.close()
    assert errors == []


def settled(page):
    """Waits until nothing moves and no tile is missing; the updates so far."""
    updates = page.evaluate("""async (patience) => {
        const { state, viewer } = microscope;
        const seen = () => JSON.stringify([state.updates.length, state.inFlight, viewer.viewport.getBounds(true)]);
        const until = performance.now() + 30000 * patience;
        for (let quiet = 0, before = ""; performance.now() < until; before = seen()) {
            await new Promise(requestAnimationFrame);
            quiet = seen() === before && state.inFlight === 0 && state.updates.length ? quiet + 1 : 0;
            if (quiet === 12) return state.updates;
        }
        return null;
    }""", PATIENCE)
    assert updates is not None, "the page does not come to rest"
    return updates


def turn_wheel(page):
    """Zooms in by one turn of the wheel. OpenSeadragon takes none within 50 ms of another, by the clock of a page that may be busy."""
    zoom = page.evaluate("microscope.viewer.viewport.getZoom()")
    for _ in range(100):
        page.mouse.wheel(0, -240)
        page.evaluate("new Promise((done) => setTimeout(done, 60))")
        if page.evaluate("microscope.viewer.viewport.getZoom()") > zoom:
            return
    raise AssertionError("the wheel does not zoom")


# The tiles that the view shows, by arithmetic.
VISIBLE = """() => {
    const { viewer, slide } = microscope;
    const scale = 2 ** (slide.max_level - microscope.wantedLevel());
    const image = viewer.world.getItemAt(0);
    const box = image.viewportToImageRectangle(viewer.viewport.getBounds(true));
    const tiles = (from, to, most) => {
        const size = slide.tile_size * scale;
        return Math.ceil(Math.min(to, most) / size) - Math.floor(Math.max(from, 0) / size);
    };
    return tiles(box.x, box.x + box.width, slide.width) * tiles(box.y, box.y + box.height, slide.height);
}"""

# Full resolution, a pixel of the screen for each, with this pixel of the slide in the corner.
AT = """([left, top]) => {
    const { viewer } = microscope;
    const image = viewer.world.getItemAt(0);
    viewer.viewport.zoomTo(image.imageToViewportZoom(1), null, true);
    const size = viewer.viewport.getContainerSize();
    viewer.viewport.panTo(image.imageToViewportCoordinates(left + size.x / 2, top + size.y / 2), true);
}"""

# How far a screenshot is from what OpenSlide reads, on average, with and without JPEG as it was encoded for the browser.
COMPARE = """
import io, sys
import numpy, openslide
from PIL import Image
shot, slide, left, top = Image.open(sys.argv[1]).convert("RGB"), openslide.OpenSlide(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
size = 240
assert left % size == top % size == 0
worst = 0
for x in range(0, shot.width - size + 1, size):
    for y in range(0, shot.height - size + 1, size):
        exact = slide.read_region((left + x, top + y), 0, (size, size)).convert("RGB")
        file = io.BytesIO()
        exact.save(file, "JPEG", quality=80)
        expected = numpy.asarray(Image.open(file)).astype(int)
        got = numpy.asarray(shot.crop((x, y, x + size, y + size))).astype(int)
        worst = max(worst, abs(got - expected).mean())
print(worst)
"""


@pytest.mark.parametrize("transport", ["auto", "shunt", "tcp"])
def test_page(python, env, page, transport):
    SHOTS.mkdir(exist_ok=True)

    def shot(name):
        page.screenshot(path=SHOTS / f"{transport}-{name}.png")

    # However little there is to carry: on a busy machine some connections would stay on TCP.
    with serving(python, env | {"SHUNT_PROMOTE_RATE": "0"}, "--processes", "--transport", transport) as url:
        page.goto(url)
        page.wait_for_function("globalThis.microscope !== undefined")
        first = settled(page)
        assert [update["kind"] for update in first] == ["complete"] and first[0]["tiles"] == page.evaluate(VISIBLE)
        shot("1-whole-slide")

        # The wheel zooms: other levels' tiles, in partial updates. An update whose last tile is zoomed out of the view before it comes counts as
        # cancelled, so there may be none in the end; what is to be seen is there all the same.
        page.mouse.move(600, 500)
        begun = "microscope.state.updates.length + microscope.state.cancelled"
        before = page.evaluate(begun)
        for _ in range(6):
            turn_wheel(page)
        page.wait_for_function(f"{begun} > {before}")
        zoomed = settled(page)[len(first):]
        assert {update["kind"] for update in zoomed} <= {"partial"}
        assert page.evaluate("microscope.wantedLevel()") > first[0]["level"]
        assert page.evaluate("microscope.viewer.world.getItemAt(0).getFullyLoaded()")

        # A new image: all tiles that are to be seen, at once.
        left, top = 300, 1000
        page.evaluate(AT, [left, top])
        before = len(settled(page))
        page.keyboard.press("n")
        page.wait_for_function(f"microscope.state.updates.length > {before}")
        (complete,) = settled(page)[before:]
        visible = page.evaluate(VISIBLE)
        assert complete["kind"] == "complete" and complete["tiles"] == visible >= 30
        assert page.evaluate("microscope.state.inFlightMost") >= 30
        # Whole tiles, beside what stands above the slide (the map, the scale).
        clip = {"x": 180, "y": 200, "width": 960, "height": 720}
        page.screenshot(path=SHOTS / f"{transport}-pixels.png", clip=clip)
        slide = BUILD / "cache/shunt/cmu_small_region.svs"
        apart = float(quietly([python, "-c", COMPARE, SHOTS / f"{transport}-pixels.png", slide, str(left + clip["x"]), str(top + clip["y"])]))
        assert apart < 1, "what is shown is not what OpenSlide reads"

        # Dragging by the width of a tile makes a column or two visible, and no more.
        before = len(settled(page))
        page.mouse.move(500, 500)
        page.mouse.down()
        for step in range(1, 13):
            page.mouse.move(500 + 20 * step, 500)
            time.sleep(0.02)
        page.mouse.up()
        page.wait_for_function(f"microscope.state.updates.length > {before}")
        dragged = settled(page)[before:]
        assert {update["kind"] for update in dragged} == {"partial"}
        assert 0 < sum(update["tiles"] for update in dragged) <= visible // 2

        # One new image after the other, and the figures beside them.
        page.keyboard.press("r")
        page.wait_for_function("microscope.state.updates.filter((update) => update.kind === 'complete').length >= 8")
        # While they come: a connection is promoted by calls on it. On a busy machine one whose reader stalls goes back to TCP, beside others.
        ways = {"auto": [["memory"]], "tcp": [["tcp"]], "shunt": [["shunt"], ["shunt", "tcp"]]}[transport]
        page.wait_for_function("(ways) => ways.some((of) => document.querySelector('#transport').textContent.endsWith(of.join(', ')))", arg=ways)
        page.keyboard.press("r")
        page.keyboard.press("s")
        settled(page)
        for kind in ("partial", "complete"):
            for figure in ("p50", "p95"):
                assert re.fullmatch(r"[\d.]+ (ms|s)", page.inner_text(f"#{kind} [data-figure={figure}]"))
            assert page.get_attribute(f"#{kind} path", "d").startswith("M") or kind == "partial"
        table = page.inner_text("#streams-table").split("\n")
        assert all(way in ways[-1] for of in table[1].split("\t")[1:] for way in of.split(", ")), table
        shot("2-figures")
        page.keyboard.press("t")
        shot("3-other-theme")
        figures = requests.get(f"{url}statistics.json").json()["kinds"]
        print(transport, json.dumps(figures), page.evaluate(
            "['partial', 'complete'].map((kind) => ['p50', 'p95'].map((it) => document.querySelector(`#${kind} [data-figure=${it}]`).innerText))"))
        page.goto("about:blank")


# What the page says, said by hand. All tiles of the slide in full and the end of it at once.
CANCEL = """
import asyncio, json, sys
import aiohttp

async def main(url):
    async with aiohttp.ClientSession() as session, session.ws_connect(url + "socket") as socket:
        tiles = [[12, x, y] for y in range(13) for x in range(10)]
        await socket.send_json({"update": 1, "kind": "complete", "tiles": tiles})
        await socket.send_json({"cancel": 1})
        await socket.send_json({"update": 2, "kind": "partial", "tiles": tiles[:3]})
        came, ends = {1: 0, 2: 0}, {}
        async for message in socket:
            if message.type == aiohttp.WSMsgType.BINARY:
                came[int.from_bytes(message.data[:4], "little")] += 1
            elif "end" in (told := json.loads(message.data)):
                ends[told["end"]] = told["state"]
                if len(ends) == 2:
                    break
        print(json.dumps([came[1] < len(tiles), came[2], ends]))
        await socket.send_json({"update": 3, "kind": "complete", "tiles": [[12, 10, 0]]})
        print((await socket.receive()).type.name, socket.close_code)
    async with aiohttp.ClientSession(headers={"Origin": "http://elsewhere.example"}) as session:
        print((await session.get(url + "socket", headers={"Connection": "Upgrade", "Upgrade": "websocket"})).status)

asyncio.run(main(sys.argv[1]))
"""


def test_what_is_stale_is_cancelled_and_nonsense_refused(python, env):
    with serving(python, env) as url:
        said = quietly([python, "-c", CANCEL, url]).splitlines()
        assert json.loads(said[0]) == [True, 3, {"1": "cancelled", "2": "done"}]
        while said[1].startswith("TEXT"):
            said.pop(1)
        assert said[1:] == ["CLOSE 1008", "403"]


@pytest.mark.parametrize("name, status", [("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost", 200), ("[::1]", 200)])
def test_no_other_name_is_answered(python, env, name, status):
    """A page of elsewhere whose name means this machine (DNS rebinding) reads nothing, and opens no socket by giving itself as Origin."""
    with serving(python, env) as url:
        port = url.rsplit(":", 1)[1].strip("/")
        assert requests.get(url + "slide.json", headers={"Host": f"{name}:{port}"}).status_code == status
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "A" * 22 + "=="}
        asked = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"} | upgrade
        assert requests.get(url + "socket", headers=asked, stream=True).status_code == (421 if status == 421 else 101)


# Tiles of the pipeline beside those of OpenSlide's own generator: with blocks as they lie in the file, and as OpenSlide reads them; of the file's own
# size, and of another, so that they are made of several.
PIPELINE = """
import io, sys
import numpy, openslide
from openslide.deepzoom import DeepZoomGenerator
from PIL import Image
from shunt.microscope import _filters
from shunt.microscope._slide import Slide

for size, encoded in ((None, True), (None, False), (200, True)):
    slide = Slide.open(sys.argv[1], size)
    assert slide.encoded == [True]
    slide.take_encoded([encoded])
    deep = DeepZoomGenerator(openslide.OpenSlide(sys.argv[1]), slide.tile_size, 0)
    worst = 0
    with _filters.layout(slide, 95).start(copies={"read": 2, "decode": 3, "zoom": 2}) as group:
        for level in range(slide.deepest - 4, slide.deepest + 1):
            columns, rows = slide.tiles_at(level)
            assert deep.level_tiles[level] == (columns, rows)
            asked = {(level, x, y) for x in {0, columns // 2, columns - 1} for y in {0, rows // 2, rows - 1}}
            for part in group.append(list(asked)).result():
                tile = _filters.HEAD.unpack_from(part)
                asked.remove(tile)
                got = numpy.asarray(Image.open(io.BytesIO(part[_filters.HEAD.size:]))).astype(int)
                expected = numpy.asarray(deep.get_tile(level, tile[1:])).astype(int)
                # It rounds the width of a narrow tile otherwise.
                assert all(abs(a - b) <= 1 for a, b in zip(got.shape, expected.shape))
                high, wide = (min(a, b) for a, b in zip(got.shape[:2], expected.shape[:2]))
                worst = max(worst, abs(got[:high, :wide] - expected[:high, :wide]).mean())
            assert not asked
    print(worst)
"""


def test_tiles_are_what_openslide_makes(python, env):
    with serving(python, env, "--quality", "95") as url:
        # For any other viewer: Deep Zoom.
        assert re.search(r'Overlap="0" TileSize="240".*Width="2220" Height="2967"', requests.get(f"{url}slide.dzi").text)
        tile = requests.get(f"{url}slide_files/12/9_12.jpeg")
        assert tile.headers["Content-Type"] == "image/jpeg" and tile.content[:3] == b"\xff\xd8\xff"
        assert requests.get(f"{url}slide_files/12/10_0.jpeg").status_code == 404
        assert 'shunt_filters_buffers_total{stream="zoom->view"' in requests.get(f"{url}metrics").text
    # The rest is JPEG's.
    worst = [float(line) for line in quietly([python, "-c", PIPELINE, BUILD / "cache/shunt/cmu_small_region.svs"]).splitlines()]
    assert len(worst) == 3 and max(worst) < 8, worst


def test_a_replica_says_that_it_is_one(python, env):
    with serving(python, env, "--replicate", "2") as url:
        about = requests.get(f"{url}slide.json").json()
        assert (about["width"], about["height"]) == (4440, 5934)
        assert about["replicated"] == "replicated 2x2 from CMU-1-Small-Region.svs" and all(about["encoded"])
        assert requests.get(f"{url}slide_files/{about['min_level']}/0_0.jpeg").ok


def test_what_cannot_be_is_said(python, env, tmp_path):
    """By the command, which finds the Python that it is told."""
    text = tmp_path / "text.svs"
    text.write_text("no slide")
    for args, status, said in [
        (["--help"], 0, "exit status:"),
        (["--copies", "read=0"], 2, "a number of copies is 1 to 64"),
        ([tmp_path / "nothing.svs"], 1, "there is no such file"),
        ([text], 1, "is no slide that OpenSlide can read"),
    ]:
        done = subprocess.run([modes.command(), "microscope", *args], env=env | {"SHUNT_PYTHON": str(python)}, capture_output=True, text=True)
        assert done.returncode == status and said in done.stdout + done.stderr, done
