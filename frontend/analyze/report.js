"use strict";
// Draws the report from the data in the page. No library, no request to anywhere.

const data = JSON.parse(document.getElementById("data").textContent);
const report = document.getElementById("report");
const COLOURS = { lru: "#1f6feb", lfu: "#d97706", slru: "#0d9488", fifo: "#7c3aed", priority: "#be185d", gdsf: "#65a30d", optimum: "#64748b" };
const REASON_COLOURS = {
  cached: "#22a565", last_token: "#86cfa6", preempted: "#a16207", twin_in_prefill: "#0ea5e9", evicted: "#e0533d",
  other_namespace: "#b45ad6", shorter_than_page: "#e8a33d", diverged: "#7d8ea6", never_seen: "#c3ccd8",
};

const number = (n) => Number(n).toLocaleString("en-US", { maximumFractionDigits: 1 });
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(2) + " %" : "–");
const compact = (n) => {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (n >= size) return +(n / size).toPrecision(3) + unit;
  return String(+Number(n).toPrecision(3));
};
const title = (name) => name.replaceAll("_", " ");

function element(parent, tag, attributes = {}, text) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  if (parent) parent.append(found);
  return found;
}
function shape(parent, tag, attributes = {}, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  parent.append(found);
  return found;
}
function section(heading, note, parent = report) {
  const found = element(parent, "section");
  element(found, "h2", {}, heading);
  if (note) element(found, "p", { class: "soft small" }, note);
  return found;
}

const tip = element(document.body, "div", { id: "tip" });
function explain(target, text) {
  target.addEventListener("mousemove", (event) => {
    tip.textContent = typeof text === "function" ? text(event) : text;
    tip.style.display = tip.textContent ? "block" : "none";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  target.addEventListener("mouseleave", () => (tip.style.display = "none"));
}

function legend(parent, entries, changed) {
  const row = element(parent, "div", { class: "legend" });
  for (const entry of entries) {
    const button = element(row, "button", { type: "button", class: entry.hidden ? "off" : "" });
    element(button, "i", { style: `background:${entry.colour}` });
    button.append(entry.label);
    if (entry.note) explain(button, entry.note);
    button.addEventListener("click", () => {
      entry.hidden = !entry.hidden;
      button.classList.toggle("off", entry.hidden);
      changed();
    });
  }
}

// ---- axes -----------------------------------------------------------------------------------------------

const WIDTH = 1120, LEFT = 56, RIGHT = 14, TOP = 10, BOTTOM = 34;

function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const nice = [1, 2, 5, 10].map((f) => f * step).find((s) => (high - low) / s <= count) || step * 10;
  const found = [];
  for (let at = Math.ceil(low / nice) * nice; at <= high * 1.0001; at += nice) found.push(at);
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of high / low > 300 ? [1] : [1, 2, 5]) {
      const at = factor * 10 ** power;
      if (at >= low && at <= high) found.push(at);
    }
  return found;
}
function yAxis(svg, height, width, most, label) {
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / most);
  for (const at of ticks(0, most, 5)) {
    shape(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at), class: "grid" });
    shape(svg, "text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, label(at));
  }
  return y;
}

// ---- hit curves -----------------------------------------------------------------------------------------

function drawCurves() {
  const box = section("Hits at every cache size",
    "Share of all prompt tokens found in the cache. Drag over the chart to zoom in, double-click to zoom out; click a name to hide it.");
  const total = data.totals.prompt_tokens;
  const series = Object.entries(data.curves).map(([name, points]) => ({
    label: name + (name === "lru" && data.same_as_lru.length ? ` (= ${data.same_as_lru.join(", ")})` : ""),
    name, colour: COLOURS[name] || "#888", points,
  }));
  const sizes = data.curves.lru.map((point) => point.size_tokens);
  const whole = [Math.min(...sizes), Math.max(...sizes, data.reasons.size_tokens, 2)];
  if (whole[0] === whole[1]) whole[0] /= 2;
  let range = [...whole];
  const plot = element(null, "div");
  legend(box, series, () => draw());
  box.append(plot);

  function draw() {
    plot.replaceChildren();
    const height = 380;
    const svg = shape(plot, "svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "hit curves" });
    const shown = series.filter((one) => !one.hidden);
    const inside = (point) => point.size_tokens >= range[0] && point.size_tokens <= range[1];
    const most = Math.max(0.01, ...shown.flatMap((one) => one.points.filter(inside).map((p) => p.hit_tokens / total))) * 1.08;
    const y = yAxis(svg, height, WIDTH, Math.min(1, most), (v) => +(100 * v).toPrecision(3) + " %");
    const [low, high] = range.map(Math.log);
    const x = (size) => LEFT + ((WIDTH - LEFT - RIGHT) * (Math.log(size) - low)) / (high - low);
    const back = (pixel) => Math.exp(low + ((pixel - LEFT) / (WIDTH - LEFT - RIGHT)) * (high - low));
    for (const at of logTicks(...range)) {
      shape(svg, "line", { x1: x(at), x2: x(at), y1: TOP, y2: height - BOTTOM, class: "grid" });
      shape(svg, "text", { x: x(at), y: height - BOTTOM + 15, "text-anchor": "middle" }, compact(at));
    }
    shape(svg, "text", { x: WIDTH / 2, y: height - 2, "text-anchor": "middle" }, "cache size in tokens");
    const infinite = data.totals.infinite_hit_tokens / total;
    if (infinite <= most) shape(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(infinite), y2: y(infinite), stroke: "#22a565", "stroke-dasharray": "3 4" });
    const marks = [[data.reasons.size_tokens, "analysed size"], [data.knee.size_tokens, "knee"]];
    if (marks[0][0] === marks[1][0]) marks.splice(0, 2, [marks[0][0], "analysed size (the knee)"]);
    for (const [size, label] of marks)
      if (size >= range[0] && size <= range[1]) {
        shape(svg, "line", { x1: x(size), x2: x(size), y1: TOP, y2: height - BOTTOM, stroke: "currentColor", "stroke-dasharray": "5 4", opacity: 0.5 });
        shape(svg, "text", { x: x(size) + 4, y: TOP + (label === "knee" ? 24 : 10) }, label);
      }
    const clip = shape(shape(svg, "clipPath", { id: "curves" }), "rect", { x: LEFT, y: 0, width: WIDTH - LEFT - RIGHT, height: height - BOTTOM });
    const lines = shape(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    for (const one of shown) {
      const path = one.points.map((p, i) => `${i ? "L" : "M"}${x(p.size_tokens).toFixed(1)} ${y(p.hit_tokens / total).toFixed(1)}`).join("");
      shape(lines, "path", { d: path, fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.name === "optimum" ? "7 4" : "" });
      for (const p of one.points) shape(lines, "circle", { cx: x(p.size_tokens), cy: y(p.hit_tokens / total), r: 2.6, fill: one.colour });
    }
    const veil = shape(svg, "rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: height - TOP - BOTTOM, fill: "transparent", style: "cursor:crosshair" });
    const at = (event) => { const frame = svg.getBoundingClientRect(); return ((event.clientX - frame.left) / frame.width) * WIDTH; };
    explain(veil, (event) => {
      const size = back(at(event));
      const nearest = sizes.reduce((a, b) => (Math.abs(Math.log(b / size)) < Math.abs(Math.log(a / size)) ? b : a));
      const rows = shown.map((one) => {
        const p = one.points.find((point) => point.size_tokens === nearest);
        return `${one.name}: ${percent(p.hit_tokens, total)} (${number(p.hit_tokens)} tokens)`;
      });
      return [`${number(nearest)} tokens of cache`, ...rows, `infinite: ${percent(data.totals.infinite_hit_tokens, total)}`].join("\n");
    });
    let from = null, band = null;
    veil.addEventListener("mousedown", (event) => {
      from = at(event);
      band = shape(svg, "rect", { x: from, y: TOP, width: 0, height: height - TOP - BOTTOM, fill: "var(--accent)", opacity: 0.15, "pointer-events": "none" });
    });
    veil.addEventListener("mousemove", (event) => {
      if (from === null) return;
      band.setAttribute("x", Math.min(from, at(event)));
      band.setAttribute("width", Math.abs(at(event) - from));
    });
    veil.addEventListener("mouseup", (event) => {
      const ends = [from, at(event)].sort((a, b) => a - b);
      from = null;
      band.remove();
      if (ends[1] - ends[0] > 12) { range = ends.map(back); draw(); }
    });
    veil.addEventListener("dblclick", () => { range = [...whole]; draw(); });
  }
  draw();
}

// ---- reasons --------------------------------------------------------------------------------------------

function drawReasons() {
  const r = data.reasons, total = r.of_prompt_tokens;
  const box = section("Why tokens were cached or not",
    `Every prompt token has one reason, at ${number(r.size_tokens)} tokens of cache under ${r.policy}; shares are of all ${number(total)} prompt tokens.`);
  const svg = shape(box, "svg", { viewBox: `0 0 ${WIDTH} 40`, role: "img", "aria-label": "reasons" });
  let x = 0;
  for (const [name, tokens] of Object.entries(r.tokens)) {
    if (!tokens) continue;
    const width = (WIDTH * tokens) / total;
    const bar = shape(svg, "rect", { x, y: 4, width: Math.max(width - 1, 0.6), height: 30, rx: 3, fill: REASON_COLOURS[name] });
    explain(bar, `${title(name)}: ${number(tokens)} tokens, ${percent(tokens, total)}\n${data.reason_texts[name]}`);
    x += width;
  }
  const table = element(box, "table");
  head(table, ["reason", "tokens", "share of prompt tokens", "what it means"], [3]);
  for (const [name, tokens] of Object.entries(r.tokens)) {
    if (!tokens) continue;
    const row = element(table, "tr");
    const first = element(row, "td");
    element(first, "i", { style: `display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;background:${REASON_COLOURS[name]}` });
    first.append(title(name));
    element(row, "td", {}, number(tokens));
    element(row, "td", {}, percent(tokens, total));
    element(row, "td", { class: "text" }, data.reason_texts[name]);
  }
  if (r.evicted.requests) {
    const idle = r.evicted.median_idle_s === null ? "" : `; half of them within ${number(r.evicted.median_idle_s)} s of the last use`;
    const keeps = r.evicted.median_size_that_keeps_tokens === null ? "" : `. A cache of ${number(r.evicted.median_size_that_keeps_tokens)} tokens would have kept half of what was lost`;
    element(box, "p", { class: "soft small" }, `${number(r.evicted.requests)} requests missed what had been evicted${idle}${keeps}.`);
  }
}

function head(table, names, textColumns = []) {
  const row = element(table, "tr");
  names.forEach((name, index) => element(row, "th", textColumns.includes(index) ? { class: "text" } : {}, name));
}

// ---- advice ---------------------------------------------------------------------------------------------

function drawAdvice() {
  const box = section("What would help", "Gains are prompt tokens that need not be computed, measured at the analysed size; they don't add up.");
  if (!data.advice.length) element(box, "p", {}, "Nothing that is worth two thousandths of the prompt tokens.");
  for (const one of data.advice) {
    const row = element(box, "div", { class: "advice" });
    element(row, "div", { class: "gain" }, `${(100 * one.share).toFixed(1)} %`);
    element(row, "div", {}, one.title);
    element(row, "div", { class: "soft small" }, `${number(one.gain_tokens)} tokens. ${one.detail}`);
  }
}

// ---- time -----------------------------------------------------------------------------------------------

function drawTime() {
  if (data.time.length < 2) return;
  const names = Object.keys(data.reasons.tokens).filter((name) => data.time.some((slot) => slot.tokens[name]));
  const box = section("Along the time", `Prompt tokens in each ${number(data.time[0].width_s)} s, by reason.`);
  const layers = names.map((name) => ({ name, label: title(name), colour: REASON_COLOURS[name], note: data.reason_texts[name] }));
  const plot = element(null, "div");
  legend(box, layers, () => draw());
  box.append(plot);
  function draw() {
    plot.replaceChildren();
    const height = 260, shown = layers.filter((one) => !one.hidden);
    const svg = shape(plot, "svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "tokens over time" });
    const sum = (slot) => shown.reduce((total, one) => total + (slot.tokens[one.name] || 0), 0);
    const y = yAxis(svg, height, WIDTH, Math.max(1, ...data.time.map(sum)), compact);
    const step = (WIDTH - LEFT - RIGHT) / data.time.length;
    data.time.forEach((slot, index) => {
      let base = 0;
      for (const one of shown) {
        const tokens = slot.tokens[one.name] || 0;
        if (!tokens) continue;
        shape(svg, "rect", { x: LEFT + index * step, y: y(base + tokens), width: Math.max(step - 0.6, 0.5), height: y(base) - y(base + tokens), fill: one.colour });
        base += tokens;
      }
      const veil = shape(svg, "rect", { x: LEFT + index * step, y: TOP, width: step, height: height - TOP - BOTTOM, fill: "transparent" });
      explain(veil, [`from ${number(slot.start_s)} s: ${number(slot.requests)} requests, ${number(slot.prompt_tokens)} prompt tokens`,
        ...names.filter((name) => slot.tokens[name]).map((name) => `${title(name)}: ${percent(slot.tokens[name], slot.prompt_tokens)}`)].join("\n"));
    });
    const span = data.time.length * data.time[0].width_s;
    for (const at of ticks(0, span, 10))
      shape(svg, "text", { x: LEFT + ((WIDTH - LEFT - RIGHT) * at) / span, y: height - BOTTOM + 15, "text-anchor": "middle" }, number(at) + " s");
  }
  draw();
}

// ---- divergence -----------------------------------------------------------------------------------------

function drawDivergence() {
  const box = section("How far prompts go along with earlier ones", "Requests by the number of tokens they share with any earlier prompt of their namespace (powers of two).");
  const height = 230;
  const svg = shape(box, "svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "divergence histogram" });
  const y = yAxis(svg, height, WIDTH, Math.max(1, ...data.divergence.map((bin) => bin.requests)), compact);
  const step = (WIDTH - LEFT - RIGHT) / Math.max(1, data.divergence.length);
  data.divergence.forEach((bin, index) => {
    const x = LEFT + index * step;
    const bar = shape(svg, "rect", { x: x + 2, y: y(bin.requests), width: Math.max(1, step - 4), height: height - BOTTOM - y(bin.requests), fill: "var(--accent)", rx: 2 });
    explain(bar, `${number(bin.requests)} requests share ${number(bin.from_tokens)} to ${number(bin.below_tokens - 1)} tokens\nbehind that: ${number(bin.tokens_behind)} tokens`);
    shape(svg, "text", { x: x + step / 2, y: height - BOTTOM + 15, "text-anchor": "middle" }, compact(bin.from_tokens));
  });
}

// ---- tree -----------------------------------------------------------------------------------------------

function drawTree() {
  const box = section("The tree of prefixes", "Each row goes deeper into the prompts; a node's width is its number of requests, its colour how many tokens it saved. Click to zoom in, on the top row to zoom out.");
  const crumbs = element(box, "p", { class: "small soft" });
  const plot = element(box, "div");
  const nodes = new Map(data.tree.filter((node) => node.id >= 0).map((node) => [node.id, { ...node, children: [] }]));
  const root = { id: -1, requests: data.totals.requests, tokens: 0, depth: 0, text: "all requests", children: [] };
  for (const node of data.tree) {
    const own = nodes.get(node.id) || { ...node, children: [], tokens: 0, text: `${number(node.others)} more branches` };
    const parent = node.parent < 0 ? root : nodes.get(node.parent);
    own.above = parent;
    parent.children.push(own);
  }
  const weight = (node) => node.requests;
  for (const node of [root, ...nodes.values()]) node.children.sort((a, b) => (a.others ? 1 : 0) - (b.others ? 1 : 0) || weight(b) - weight(a));
  const ROWS = 9, ROW = 30;
  let top = root;
  const colour = (node) => {
    if (node.others) return "#b9c2ce";
    const saved = Math.log10(1 + Math.max(0, node.requests - 1) * node.tokens) / 9;
    return `hsl(${210 - 180 * Math.min(1, saved)}, 62%, 70%)`;
  };
  const describe = (node) =>
    [node.text, `${number(node.requests)} requests`, node.others ? "" : `${number(node.tokens)} tokens, from token ${number(node.depth)} on`,
      node.others || node.requests < 2 ? "" : `${number((node.requests - 1) * node.tokens)} tokens need not be computed again`].filter(Boolean).join("\n");

  function draw() {
    plot.replaceChildren();
    crumbs.textContent = top === root ? `${number(root.requests)} requests` : `${number(top.depth)} tokens deep: ${top.text}`;
    const svg = shape(plot, "svg", { viewBox: `0 0 ${WIDTH} ${ROWS * ROW}`, role: "img", "aria-label": "tree of prefixes" });
    const queue = [[top, 0, WIDTH, 0]];
    while (queue.length) {
      const [node, x, width, row] = queue.shift();
      const cell = shape(svg, "g", { class: "cell" });
      const bar = shape(cell, "rect", { x, y: row * ROW, width: Math.max(width, 0.5), height: ROW - 2, rx: 3, fill: node === root ? "#cfd8e3" : colour(node) });
      explain(bar, describe(node));
      bar.addEventListener("click", () => { top = node === top ? node.above || root : node.others ? top : node; tip.style.display = "none"; draw(); });
      const letters = Math.floor(width / 6.4);
      if (letters > 4) shape(cell, "text", { x: x + 5, y: row * ROW + 18 }, node.text.replaceAll("\n", " ").slice(0, letters));
      if (row + 1 >= ROWS) continue;
      const sum = Math.max(weight(node), node.children.reduce((total, child) => total + weight(child), 0));
      let left = x;
      for (const child of node.children) {
        const share = (width * weight(child)) / sum;
        if (share > 0.6) queue.push([child, left, share, row + 1]);
        left += share;
      }
    }
  }
  draw();
}

// ---- tables ---------------------------------------------------------------------------------------------

function drawBreakdown() {
  const dimensions = Object.keys(data.breakdown);
  if (!dimensions.length) return;
  const box = section("By part of the traffic", "Hit rate: cached tokens of all prompt tokens in the row.");
  if (data.sharing) {
    const s = data.sharing;
    element(box, "p", { class: "small" }, `Of ${number(s.hit_tokens)} hit tokens ${percent(s.within_session, s.hit_tokens)} were last used by the same session, ${percent(s.across_sessions, s.hit_tokens)} by another one.`);
  }
  const tabs = element(box, "div", { class: "tabs" });
  const table = element(element(box, "div", { class: "scroll" }), "table");
  const show = (dimension) => {
    for (const button of tabs.children) button.classList.toggle("on", button.dataset.name === dimension);
    table.replaceChildren();
    head(table, [title(dimension), "requests", "prompt tokens", "cached tokens", "hit rate", "evicted"]);
    for (const row of data.breakdown[dimension]) {
      const line = element(table, "tr");
      element(line, "td", { class: "text" }, row.name);
      for (const cell of [number(row.requests), number(row.prompt_tokens), number(row.cached_tokens), percent(row.cached_tokens, row.prompt_tokens), percent(row.tokens.evicted || 0, row.prompt_tokens)])
        element(line, "td", {}, cell);
    }
  };
  for (const name of dimensions) element(tabs, "button", { type: "button", "data-name": name }, title(name)).addEventListener("click", () => show(name));
  show(dimensions[0]);
}

function drawPrefixes() {
  const box = section("Shared prefixes", "Reused tokens: those of the prefix's last stretch, once for each request but the first.");
  const tabs = element(box, "div", { class: "tabs" });
  const table = element(element(box, "div", { class: "scroll" }), "table");
  const show = (by) => {
    for (const button of tabs.children) button.classList.toggle("on", button.dataset.name === by);
    table.replaceChildren();
    head(table, ["begins", "prefix tokens", "requests", "reused tokens", "first request"], [0]);
    for (const row of data.top_prefixes[by]) {
      const line = element(table, "tr");
      explain(element(line, "td", { class: "text" }, row.text), row.text);
      for (const cell of [number(row.prefix_tokens), number(row.requests), number(row.reused_tokens), row.first_request]) element(line, "td", {}, cell);
    }
  };
  for (const [by, label] of [["tokens", "by tokens"], ["count", "by requests"]])
    element(tabs, "button", { type: "button", "data-name": by }, label).addEventListener("click", () => show(by));
  show("tokens");
}

// ---- page -----------------------------------------------------------------------------------------------

function drawHead() {
  const t = data.totals, r = data.reasons, input = data.input;
  element(report, "h1", {}, `Cache analysis of ${input.name}`);
  element(report, "p", { class: "soft" }, `${input.format}, ${number(t.requests)} requests, ${number(t.prompt_tokens)} prompt tokens in ${number(t.blocks)} blocks of ${input.block_size} tokens (${number(t.distinct_blocks)} distinct)` + (input.tokenizer ? `, tokenizer: ${input.tokenizer}` : ""));
  const cards = element(report, "div", { class: "cards" });
  const card = (label, value, note) => {
    const box = element(cards, "div", { class: "card" });
    element(box, "span", { class: "soft small" }, label);
    element(box, "b", {}, value);
    element(box, "span", { class: "soft small" }, note);
  };
  const cached = r.tokens.cached, best = r.hit_tokens_by_policy.optimum;
  card(`hit rate, ${r.policy} at ${compact(r.size_tokens)} tokens`, percent(cached, r.of_prompt_tokens), "of prompt tokens");
  card("a cache that forgets nothing", percent(t.infinite_hit_tokens, t.prompt_tokens), `${number(t.infinite_hit_tokens)} of the prompt tokens`);
  card("optimum at that size", percent(best, t.prompt_tokens), "of prompt tokens; no order of eviction does better");
  card("for 95 % of what can be had", compact(data.size_for_share_of_infinite["0.95"].size_tokens), "tokens of LRU cache");
  if (t.reported_cached_tokens !== null) card("the server reported", percent(t.reported_cached_tokens, t.prompt_tokens), "of prompt tokens");
  const said = [...input.notes, ...input.skipped.map((skip) => `${number(skip.count)} × left out: ${skip.reason} (first in line ${number(skip.first_line)})`)];
  if (said.length) {
    const box = section("About the input");
    const list = element(box, "ul", { class: "small" });
    for (const line of said) element(list, "li", {}, line);
  }
}

report.replaceChildren();
drawHead();
drawAdvice();
drawCurves();
drawReasons();
drawTime();
drawTree();
drawDivergence();
drawBreakdown();
drawPrefixes();
document.body.dataset.ready = "yes";
