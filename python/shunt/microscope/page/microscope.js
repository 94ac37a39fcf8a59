// The page of the microscope. OpenSeadragon says which tiles it wants; those of one frame are one update, asked for by one message, and are one unit of
// work of the filter group (_server.py has the messages). An update is complete (a new image: nothing is kept of what was shown) or partial (what a pan
// or zoom made visible). An update that nobody waits for any more, because the view has moved on, is cancelled.

const KEPT = 200; // latencies, for the percentiles
const DRAWN = 80; // latencies, in the little curve
const RATE_OVER = 3000; // ms
// A level is used down to this many screen pixels for one of its own: below, the next coarser one is as good, with a quarter of the tiles.
const PIXEL_LEAST = 0.7;

const NOT_NOW = "not wanted now";

const $ = (id) => document.getElementById(id);
const slide = await (await fetch("slide.json")).json();

// ---- Updates

const socket = new Worker("socket.js");
let connected = false;
let number = 0;
let asked = []; // jobs of OpenSeadragon's that are not asked for yet
let completeNext = true; // the first image is a complete update
const updates = new Map(); // by number: those that are under way
const behind = new Map(); // pictures of the coarse levels that are shown while others come, by tile
const broken = new Set(); // tiles that the server cannot make
const state = { updates: [], inFlight: 0, inFlightMost: 0, cancelled: 0, tileTimes: [], statistics: null, repeat: false };

const name = (level, x, y) => `${level}/${x}_${y}`;
const nameOf = (tile) => name(tile.level, tile.x, tile.y);
const isBehind = (job) => job.tile.level < wantedLevel();

// The time that the socket's thread tells, too.
const time = () => performance.timeOrigin + performance.now();

function want(job) {
  const kept = behind.get(nameOf(job.tile));
  if (kept && isBehind(job)) {
    finish(job, kept);
    return;
  }
  asked.push(job);
  // OpenSeadragon asks for all tiles of a frame in one go: when it is done with that, they are one request.
  if (asked.length === 1) queueMicrotask(flush);
}

function flush() {
  if (!connected) return; // they wait for it
  const jobs = asked;
  asked = [];
  const inView = jobs.filter((job) => !isBehind(job));
  if (inView.length) {
    begin(completeNext ? "complete" : "partial", inView);
    completeNext = false;
  }
  begin("other", jobs.filter(isBehind));
}

function begin(kind, jobs) {
  if (!jobs.length) return;
  const update = { number: ++number, kind, missing: new Map(), tiles: 0, asked: time(), first: null, level: jobs[0].tile.level };
  for (const job of jobs) {
    const tile = nameOf(job.tile);
    if (!update.missing.has(tile)) update.missing.set(tile, []);
    update.missing.get(tile).push(job);
  }
  update.tiles = update.missing.size;
  updates.set(update.number, update);
  count(update.tiles);
  const tiles = [...update.missing.values()].map(([{ tile }]) => [tile.level, tile.x, tile.y]);
  socket.postMessage({ update: update.number, kind, tiles });
}

function arrived({ update: of, level, x, y, picture, bitmap, at }) {
  const update = updates.get(of);
  const tile = name(level, x, y);
  const jobs = update?.missing.get(tile);
  if (!jobs) return; // it was cancelled
  if (update.kind === "other") behind.set(tile, picture);
  const [first, ...others] = jobs;
  first.finish(bitmap, null, "imageBitmap");
  others.forEach((job) => finish(job, picture));
  update.missing.delete(tile);
  count(-1);
  state.tileTimes.push(at);
  update.first ??= at;
  if (update.missing.size === 0) done(update, at);
}

async function finish(job, picture) {
  job.finish(await createImageBitmap(picture), null, "imageBitmap");
}

function done(update, at) {
  updates.delete(update.number);
  if (update.kind === "other") return;
  state.updates.push({
    kind: update.kind, tiles: update.tiles, level: update.level, at, ms: at - update.asked, first: (update.first ?? at) - update.asked,
  });
  if (state.updates.length > 20 * KEPT) state.updates.splice(0, 10 * KEPT);
  changed();
  if (update.kind === "complete") imageEnded();
}

function imageEnded() {
  while (viewer.world.getItemCount() > 1 && viewer.world.getItemAt(0) !== current) viewer.world.removeItem(viewer.world.getItemAt(0));
  if (state.repeat) requestAnimationFrame(newImage);
}

function ended({ end, state: how, why, failed = [] }) {
  if (why) trouble(why);
  if (failed.length) trouble(`${failed.length === 1 ? "A tile" : `${failed.length} tiles`} cannot be made: the server says why`);
  for (const [level, x, y] of failed) broken.add(name(level, x, y));
  const update = updates.get(end);
  if (!update) return;
  // The others of one that is done have come, but may be decoded yet.
  if (how !== "done") drop(update, how === "cancelled" ? NOT_NOW : "the server says why");
  for (const [level, x, y] of failed) {
    const tile = name(level, x, y);
    update.missing.get(tile)?.forEach((job) => job.fail("the server says why"));
    if (update.missing.delete(tile)) count(-1);
  }
  if (updates.has(end) && update.missing.size === 0) done(update, time());
}

function drop(update, why) {
  updates.delete(update.number);
  count(-update.missing.size);
  for (const jobs of update.missing.values()) jobs.forEach((job) => job.fail(why));
  update.missing.clear();
  viewer.forceRedraw();
  if (update.kind === "complete" && !completeNext) imageEnded();
}

function cancel(update) {
  socket.postMessage({ cancel: update.number });
  state.cancelled += 1;
  drop(update, NOT_NOW);
}

// Cancels what no tile is wanted of any more.
function cancelStale() {
  const level = wantedLevel();
  const bounds = viewer.viewport.getBounds(true).getBoundingBox();
  for (const update of updates.values()) {
    if (update.kind === "other") continue;
    const wanted = [...update.missing.values()].some(([{ tile }]) => {
      const at = tile.bounds;
      return tile.level === level && at.x < bounds.x + bounds.width && at.x + at.width > bounds.x
        && at.y < bounds.y + bounds.height && at.y + at.height > bounds.y;
    });
    if (!wanted) cancel(update);
  }
}

// What is shown stays until the new image is there: OpenSeadragon has both, one above the other, and no tile is the other's.
function newImage() {
  if (!connected || !current) return;
  completeNext = true;
  for (const update of updates.values()) if (update.kind !== "other") cancel(update);
  if (current !== viewer.world.getItemAt(0)) viewer.world.removeItem(current);
  current = null;
  viewer.addTiledImage({ tileSource: source(), success: ({ item }) => { current = item; } });
}

function count(more) {
  state.inFlight += more;
  state.inFlightMost = Math.max(state.inFlightMost, state.inFlight);
  changed();
}

// ---- The connection

function connect() {
  socket.postMessage({ connect: new URL("socket", location.href.replace(/^http/, "ws")).href });
}

socket.onmessage = ({ data }) => {
  if (data.tile) arrived(data.tile);
  else if (data.told) told(data.told);
  else if (data.open) {
    connected = true;
    trouble("");
    flush();
  } else {
    connected = false;
    trouble("The microscope does not answer. Trying again…");
    for (const update of updates.values()) {
      asked.push(...[...update.missing.values()].flat());
      count(-update.missing.size);
    }
    updates.clear();
  }
};

function told(message) {
  if ("end" in message) ended(message);
  if ("statistics" in message) {
    state.statistics = message.statistics;
    changed();
  }
}

function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
  if (text && connected) setTimeout(() => trouble(""), 8000);
}

// ---- The viewer

// To OpenSeadragon tiles that are not wanted any more "failed to load", and it would tell the console of each.
const { error } = OpenSeadragon.console;
OpenSeadragon.console.error = (...what) => what.at(-1) === NOT_NOW || error.apply(console, what);

let images = 0;
let current = null; // the image that is asked for; there may be an older one behind it

function source() {
  const image = ++images;
  return {
    width: slide.width,
    height: slide.height,
    tileSize: slide.tile_size,
    tileOverlap: 0,
    minLevel: slide.min_level,
    maxLevel: slide.max_level,
    getTileUrl: (level, x, y) => `slide_files/${name(level, x, y)}.jpeg`,
    getTileHashKey: (level, x, y) => `${image}:${name(level, x, y)}`,
    downloadTileStart: want,
    downloadTileAbort: () => {},
  };
}

const viewer = OpenSeadragon({
  element: $("slide"),
  drawer: "canvas",
  showNavigationControl: false,
  animationTime: 0.4,
  springStiffness: 8,
  blendTime: 0,
  immediateRender: true,
  minPixelRatio: PIXEL_LEAST,
  maxTilesPerFrame: 500,
  maxImageCacheCount: 600,
  maxZoomPixelRatio: 4,
  subPixelRoundingForTransparency: OpenSeadragon.SUBPIXEL_ROUNDING_OCCURRENCES.ALWAYS,
  visibilityRatio: 0.3,
  gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
  tileSources: source(),
});

// OpenSeadragon stretches tiles by a pixel, so that no seams show. Where pixels of a level are pixels of the screen there are none, and they are shown
// as they are.
viewer.drawer.minimumOverlapRequired = () => {
  const pixels = viewer.world.getItemAt(0).viewportToImageZoom(viewer.viewport.getZoom(true)) * OpenSeadragon.pixelDensityRatio;
  return Math.abs(pixels * 2 ** (slide.max_level - wantedLevel()) - 1) > 1e-6;
};

// The finest level that OpenSeadragon draws: nothing below it is asked for, but the coarsest.
function wantedLevel() {
  const image = viewer.world.getItemAt(0);
  if (!image) return slide.max_level;
  const pixels = image.viewportToImageZoom(viewer.viewport.getZoom(true)) * OpenSeadragon.pixelDensityRatio;
  // When in doubt the coarser one: OpenSeadragon may round otherwise.
  const below = Math.ceil(Math.log2(PIXEL_LEAST / pixels) + 1e-6);
  return Math.max(slide.min_level, Math.min(slide.max_level, slide.max_level - below));
}

const coarsest = () => Math.max(viewer.world.getItemAt(0).source.getClosestLevel(), slide.min_level);

// OpenSeadragon would ask for all coarser levels as well, and never again for a tile that was cancelled. An image that an older one stands behind needs
// nothing coarse.
viewer.addHandler("update-tile", ({ tile, tiledImage }) => {
  const alone = viewer.world.getItemCount() === 1;
  const suits = tile.level >= wantedLevel() || (alone && tile.level <= coarsest());
  tile.exists = tile.loaded || tile.loading || (tiledImage === current && suits && !broken.has(nameOf(tile)));
});
viewer.addHandler("update-viewport", cancelStale);
viewer.addHandler("open", () => {
  current = viewer.world.getItemAt(0);
  connect();
  showMap();
});
viewer.addHandler("canvas-key", (event) => {
  // These rotate and flip; here they are ours.
  if (["r", "R", "f", "F"].includes(event.originalEvent.key)) event.preventDefaultAction = true;
});

viewer.addHandler("update-viewport", () => {
  const image = viewer.world.getItemAt(0);
  if (!image || !slide.mpp) return;
  const perPixel = slide.mpp / image.viewportToImageZoom(viewer.viewport.getZoom(true)); // micrometres
  const target = perPixel * 120;
  const power = 10 ** Math.floor(Math.log10(target));
  const length = [5, 2, 1].map((times) => times * power).find((it) => it <= target);
  $("scale").hidden = false;
  $("scale-text").textContent = length >= 1000 ? `${length / 1000} mm` : `${Number(length.toPrecision(1))} µm`;
  $("scale-bar").style.width = `${length / perPixel}px`;
});

// ---- The map

function showMap() {
  $("map-picture").onload = () => { $("map").hidden = false; };
  $("map-picture").src = `slide_files/${name(coarsest(), 0, 0)}.jpeg`;
  const place = (event) => {
    const box = $("map").getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    viewer.viewport.panTo(new OpenSeadragon.Point(x, (y * slide.height) / slide.width));
  };
  $("map").addEventListener("pointerdown", (event) => {
    $("map").setPointerCapture(event.pointerId);
    place(event);
  });
  $("map").addEventListener("pointermove", (event) => event.buttons && place(event));
  viewer.addHandler("update-viewport", showWindow);
  showWindow();
}

function showWindow() {
  const { x, y, width, height } = viewer.viewport.getBounds(true);
  const [wide, high] = [1, slide.height / slide.width];
  const cut = (from, to, most) => [Math.max(from, 0) / most, Math.min(to, most) / most];
  const [left, right] = cut(x, x + width, wide);
  const [top, bottom] = cut(y, y + height, high);
  Object.assign($("map-window").style, {
    left: `${left * 100}%`, top: `${top * 100}%`, width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%`,
  });
}

// ---- Figures

const ms = (value) => (value === null ? "–" : value < 9.95 ? `${value.toFixed(1)} ms` : value < 999.5 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`);
const seconds = (value) => (value === null ? "–" : value === 0 ? "0" : value < 1e-3 ? `${Math.round(value * 1e6)} µs` : ms(value * 1000));
const percentile = (sorted, part) => (sorted.length ? sorted[Math.ceil(part * sorted.length) - 1] : null);
const text = (element, value) => {
  if (element.textContent !== value) element.textContent = value;
};

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

const MEANINGS = {
  way: "What the buffers go by",
  "unread (most)": "Buffers that were sent and are not started on: now, and the most at once",
  p50: "From sent to started on, for half of the buffers; the worst pair of copies",
  p99: "From sent to started on, for 99 of 100 buffers; the worst pair of copies",
  blocked: "How long producers have waited for credits",
  idle: "How long consumers have waited for buffers",
};

let scheduled = false;
function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    show();
  });
}

function show() {
  const now = time();
  for (const kind of ["partial", "complete"]) {
    const all = state.updates.filter((update) => update.kind === kind);
    const kept = all.slice(-KEPT);
    const sorted = kept.map((update) => update.ms).sort((a, b) => a - b);
    const figure = (which) => $(kind).querySelector(`[data-figure="${which}"]`);
    text(figure("p50"), ms(percentile(sorted, 0.5)));
    text(figure("p95"), ms(percentile(sorted, 0.95)));
    text(figure("count"), String(all.length));
    text(figure("rate"), rate(kept.map((update) => update.at), now));
    const last = kept.at(-1);
    if (last) text(figure("last"), `last: ${last.tiles} ${last.tiles === 1 ? "tile" : "tiles"}, first ${ms(last.first)}, all ${ms(last.ms)}`);
    const drawn = kept.slice(-DRAWN).map((update) => update.ms);
    const top = Math.max(...drawn, 1);
    if (drawn.length) text(figure("scale"), `top ${ms(top)}`);
    const points = drawn.map((value, at) => `${((at + DRAWN - drawn.length) / (DRAWN - 1)) * 300},${42 - (value / top) * 40}`);
    $(kind).querySelector("path").setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  }
  while (state.tileTimes.length && state.tileTimes[0] < now - RATE_OVER) state.tileTimes.shift();
  text($("tile-rate"), rate(state.tileTimes, now));
  text($("in-flight"), String(state.inFlight));
  text($("in-flight-most"), String(state.inFlightMost));
  text($("cancelled"), String(state.cancelled));
  if (state.statistics) showStatistics(state.statistics);
}

function rate(times, now) {
  const many = times.filter((at) => at > now - RATE_OVER).length;
  const value = many / (RATE_OVER / 1000);
  return value === 0 ? "0" : value < 10 ? value.toFixed(1) : String(Math.round(value));
}

function showStatistics(seen) {
  const ways = seen.ways.filter(Boolean).join(", ") || "–";
  for (const kind of ["partial", "complete"]) {
    const { p50, p95 } = seen.kinds[kind];
    if (p50 !== null) text($(kind).querySelector('[data-figure="group"]'), `of it in the filter group: p50 ${seconds(p50)}, p95 ${seconds(p95)}`);
  }
  text($("transport"), ways === slide.transport ? ways : `${slide.transport}: ${ways}`);
  if ($("streams").hidden) return;
  const rows = {
    "": (it) => it.stream.replace("->", " → "),
    way: (it) => it.ways.join(", "),
    buffers: (it) => it.buffers.toLocaleString("en"),
    bytes: (it) => bytes(it.bytes),
    "unread (most)": (it) => `${it.unacknowledged} (${it.unacknowledged_most})`,
    p50: (it) => seconds(it.p50),
    p99: (it) => seconds(it.p99),
    blocked: (it) => seconds(it.blocked),
    idle: (it) => seconds(it.idle),
  };
  $("streams-table").replaceChildren(...Object.entries(rows).map(([head, cell]) => {
    const row = document.createElement("tr");
    row.append(Object.assign(document.createElement("th"), { textContent: head, title: MEANINGS[head] ?? "" }));
    row.append(...seen.streams.map((it) => Object.assign(document.createElement(head ? "td" : "th"), { textContent: cell(it) })));
    return row;
  }));
  const { units } = seen;
  const lost = seen.losses ? `, processes lost: ${seen.losses}` : "";
  text($("units"), `Units of work: ${units.done} done, ${units.failed} failed or cancelled, ${units.running} under way${lost}`);
}

function showSlide() {
  text($("name"), slide.name);
  document.title = `${slide.name} – Shunt microscope`;
  const pixels = slide.width * slide.height;
  const size = pixels >= 1e9 ? `${(pixels / 1e9).toFixed(2)} gigapixels` : `${(pixels / 1e6).toFixed(1)} megapixels`;
  const more = [slide.objective && `${slide.objective}×`, slide.mpp && `${slide.mpp} µm per pixel`, `tiles ${slide.tile_size}`].filter(Boolean);
  text($("about"), [`${slide.width.toLocaleString("en")} × ${slide.height.toLocaleString("en")}, ${size}`, ...more].join(" · "));
  if (slide.replicated) {
    text($("replicated"), slide.replicated);
    $("replicated").hidden = false;
  }
  text($("origin"), [slide.origin, slide.licence].filter(Boolean).join(" · "));
  $("stages").replaceChildren(...Object.entries(slide.copies).map(([stage, copies]) => {
    const item = document.createElement("li");
    item.append(Object.assign(document.createElement("b"), { textContent: stage }));
    item.append(Object.assign(document.createElement("span"), { textContent: copies === 1 ? "1 copy" : `${copies} copies` }));
    return item;
  }));
  const where = slide.launcher !== "local" ? `launcher: ${slide.launcher}` : slide.processes ? "a process each, view here" : "threads of one process";
  text($("launcher"), where);
}

// ---- Buttons and keys

const actions = {
  n: newImage,
  r: () => {
    state.repeat = !state.repeat;
    $("repeat").setAttribute("aria-pressed", state.repeat);
    if (state.repeat) newImage();
  },
  h: () => viewer.viewport.goHome(),
  t: () => {
    const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  },
  s: () => {
    $("streams").hidden = !$("streams").hidden;
    $("streams-button").setAttribute("aria-expanded", !$("streams").hidden);
    changed();
  },
};
for (const [id, key] of [["new-image", "n"], ["repeat", "r"], ["home", "h"], ["theme", "t"], ["streams-button", "s"]]) {
  $(id).addEventListener("click", () => actions[key]());
}
// Before OpenSeadragon, for which some of them mean something else.
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const action = actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}, { capture: true });

showSlide();
show();
// Rates go down by themselves.
setInterval(changed, 500);

// For the console, and for tests.
globalThis.microscope = { viewer, state, slide, newImage, wantedLevel };
