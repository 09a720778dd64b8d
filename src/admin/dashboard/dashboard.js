// The dashboard of a node. Every text that comes from the cluster is set as a text (textContent),
// never as markup. The token, if there is one, is kept for this tab and sent as a header.
"use strict";

const $ = (id) => document.getElementById(id);
const KEPT = 300; // points of the chart: five minutes
const SILENT_MS = 5000; // a node sends a picture each second
const COLOURS = ["#3b82f6", "#10a37f", "#a855f7", "#e08a00", "#0ea5b7", "#6366f1", "#84a10f",
  "#d946a0", "#7c6f64", "#2f9e44"];

let token = sessionStorage.getItem("tidegate-token");
let picture = null; // the newest
let base = null; // the one that rates are measured from
let rates = new Map(); // by rule
let chosen = null; // the rule of the chart; null for all
let past = []; // [seconds, Map of rates]
let chart = null;

// === elements ===

function element(name, text, kind) {
  const it = document.createElement(name);
  if (text !== undefined) it.textContent = text;
  if (kind) it.className = kind;
  return it;
}

function drawn(name, attributes) {
  const it = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
  return it;
}

function cells(row, values) {
  for (const [text, kind, title] of values) {
    const cell = row.appendChild(element("td", text, kind));
    if (title) cell.title = title;
  }
  return row;
}

const number = (n) => n >= 1e6 ? (n / 1e6).toFixed(1) + "M" : n >= 1e4 ? (n / 1e3).toFixed(1) + "k"
  : Number.isInteger(n) ? String(n) : n.toFixed(1);
const percent = (share) => (share * 100).toFixed(1) + "%";

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0s";
  return units.slice(first, first + 2).map(([name, size], at) =>
    Math.floor((at ? seconds % units[first][1] : seconds) / size) + name)
    .filter((part, at) => at === 0 || !part.startsWith("0")).join(" ");
}

// === the picture ===

const colours = () => {
  const ids = picture.members.map((member) => member.id).sort();
  return new Map(ids.map((id, at) => [id, COLOURS[at % COLOURS.length]]));
};

function show() {
  $("main").hidden = false;
  $("login").hidden = true;
  $("cluster").textContent = picture.cluster;
  document.title = `tidegate ${picture.cluster}`;
  const of = colours();
  showMembers(of);
  showRings(of);
  showRules();
  showKeys();
  const problems = alarms();
  $("alarm").hidden = problems.length === 0;
  // Said again only when it changes: a screen reader reads it out.
  const text = problems.join("; ");
  if ($("alarm").textContent !== text) $("alarm").textContent = text;
}

function alarms() {
  const down = picture.members.filter((member) => member.state === "down").map((it) => it.id);
  const reporting = picture.members.filter((it) => it.reported && it.state !== "down");
  const problems = down.length ? [`down: ${down.join(", ")}`] : [];
  for (const { id, reported } of reporting) {
    if (reported.not_ready) problems.push(`${id} is not ready: ${reported.not_ready}`);
    if (reported.rule_book.last_error) problems.push(`${id}: ${reported.rule_book.last_error}`);
    if (reported.store.shared + reported.store.refused > 0) problems.push(`${id}: its store was full`);
    if (reported.store.in_full_domains > 0) problems.push(`${id}: a domain had limits.domain_keys_max`);
  }
  return problems;
}

function showMembers(of) {
  const own = picture.members.find((member) => member.state === "self");
  const rows = picture.members.map((member) => {
    const { reported } = member;
    const ownership = reported && reported.ownership;
    const isDown = member.state === "down";
    const row = element("tr", undefined, member.state);
    row.dataset.node = member.id;
    const name = row.appendChild(element("td"));
    const swatch = name.appendChild(element("span", "", "swatch"));
    swatch.style.background = of.get(member.id);
    name.append(member.id);
    const state = member.state === "self" ? "up (this node)" : member.state;
    const differs = own && member.rule_book && member.rule_book !== own.rule_book;
    const skew = member.clock_offset_ms;
    return cells(row, [
      [reported && reported.not_ready && !isDown ? `${state}, not ready` : state, "", reported && reported.not_ready],
      [member.zone ? `${member.region} / ${member.zone}` : member.region],
      [percent(member.ring_share), "n"],
      [ownership && !isDown ? percent(ownership.decides) : "–", "n"],
      ownership && !isDown ? [ownership.has_lease ? "yes" : "no", ownership.has_lease ? "" : "bad"]
        : ["–"],
      [member.rtt_us == null || isDown ? "–" : (member.rtt_us / 1000).toFixed(1) + " ms", "n"],
      [skew == null || isDown ? "–" : (skew > 0 ? "+" : "") + skew + " ms",
        reported && reported.clock.is_skewed ? "n bad" : "n"],
      [member.rule_book ? member.rule_book.slice(0, 8) + (differs ? " !" : "") : "–",
        differs ? "bad" : "", differs ? "other rules than this node's" : ""],
      [reported ? number(reported.store.keys) : "–", "n", reported ? `of ${reported.store.keys_max}` : ""],
      [reported && !isDown ? reported.transferring_to.join(", ") : "", "warn"],
      [reported && !isDown ? duration(reported.node.uptime_s) : "–", "n"],
      [reported ? reported.node.version : "–"],
    ]);
  });
  $("member-rows").replaceChildren(...rows);
}

function showRings(of) {
  const down = new Set(picture.members.filter((it) => it.state === "down").map((it) => it.id));
  const rings = picture.rings.map(({ region, nodes, owners }) => {
    const figure = element("figure");
    const svg = figure.appendChild(drawn("svg", { viewBox: "-50 -50 100 100", role: "img" }));
    svg.appendChild(drawn("title", {})).textContent = `The ring of ${region}`;
    for (let from = 0; from < owners.length;) {
      let to = from + 1;
      while (to < owners.length && owners[to] === owners[from]) to += 1;
      const id = nodes[owners[from]];
      const at = (place) => {
        const angle = place / owners.length * 2 * Math.PI - Math.PI / 2;
        return `${(40 * Math.cos(angle)).toFixed(2)} ${(40 * Math.sin(angle)).toFixed(2)}`;
      };
      const isLong = to - from > owners.length / 2 ? 1 : 0;
      const isWhole = to - from === owners.length;
      const arc = isWhole ? drawn("circle", { r: 40 })
        : drawn("path", { d: `M ${at(from)} A 40 40 0 ${isLong} 1 ${at(to)}` });
      arc.setAttribute("fill", "none");
      arc.setAttribute("stroke-width", 14);
      if (down.has(id)) arc.setAttribute("class", "gone");
      else arc.setAttribute("stroke", of.get(id) || COLOURS[0]);
      arc.appendChild(drawn("title", {})).textContent = id;
      svg.appendChild(arc);
      from = to;
    }
    figure.appendChild(element("figcaption", region));
    return figure;
  });
  $("rings").replaceChildren(...rings);
}

// The starts of nodes whose counts are in the sums: one that reports for the first time brings all
// that it has ever counted.
function reporters(snapshot) {
  const reported = snapshot.members.map((row) => row.reported).filter(Boolean);
  return reported.map(({ node }) => `${node.id} ${node.generation}`).join();
}

function measure() {
  // Pictures that come early, because a member changed, are no base for rates.
  if (base && picture.unix_ms - base.unix_ms < 900) return;
  if (base && picture.node === base.node && reporters(picture) === reporters(base)) {
    const seconds = (picture.unix_ms - base.unix_ms) / 1000;
    const before = new Map(base.rules.map((rule) => [rule.rule, rule]));
    rates = new Map(picture.rules.map((rule) => {
      const earlier = before.get(rule.rule) || {};
      // A node that restarted counts from zero.
      const rate = (...names) => Math.max(0, names.reduce((sum, name) =>
        sum + rule[name] - (earlier[name] || 0), 0)) / seconds;
      const known = before.has(rule.rule);
      return [rule.rule, {
        admitted: known ? rate("allowed", "shadowed") : 0,
        refused: known ? rate("denied") : 0,
        waited: known ? rate("by_owner") : 0,
      }];
    }));
    past.push([picture.unix_ms / 1000, rates]);
    past = past.slice(-KEPT);
    showChart();
  }
  base = picture;
}

function showRules() {
  const rows = picture.rules.map((rule) => {
    const rate = rates.get(rule.rule) || { admitted: 0, refused: 0, waited: 0 };
    const row = element("tr", undefined, rule.rule === chosen ? "chosen" : "");
    row.dataset.rule = rule.rule;
    const choose = row.appendChild(element("td")).appendChild(element("button", rule.rule));
    choose.type = "button";
    choose.setAttribute("aria-pressed", rule.rule === chosen);
    choose.addEventListener("click", () => chooseRule(rule.rule === chosen ? null : rule.rule));
    return cells(row, [
      [rule.mode || "–"],
      [number(rate.admitted), "n"],
      [number(rate.refused), rate.refused > 0 ? "n bad" : "n"],
      [number(rule.allowed + rule.shadowed), "n"],
      [number(rule.denied), "n"],
      [number(rate.waited), "n"],
      [number(rule.unavailable + rule.alone), rule.unavailable + rule.alone > 0 ? "n warn" : "n"],
      [rule.mode === "leased" ? number(rule.held) : "–", "n"],
      [rule.mode === "leased" ? number(rule.refused_early) : "–", "n"],
      [rule.error == null ? "–" : (rule.error > 0 ? "+" : "") + percent(rule.error), "n"],
    ]);
  });
  const focused = document.activeElement && document.activeElement.closest("#rule-rows tr");
  $("rule-rows").replaceChildren(...rows);
  refocus("rule-rows", "rule", focused);
  $("no-rules").hidden = rows.length > 0;
}

// Rows are made anew each second; what had the keyboard keeps it.
function refocus(body, name, focused) {
  if (!focused) return;
  const same = [...$(body).children].find((row) => row.dataset[name] === focused.dataset[name]);
  if (same && same.querySelector("button")) same.querySelector("button").focus();
}

function showKeys() {
  const rows = picture.refused_keys.map((key) => {
    const row = element("tr");
    row.dataset.key = `${key.rule} ${key.token}`;
    const cell = row.appendChild(element("td"));
    if (key.key) {
      const look = cell.appendChild(element("button", key.key));
      look.type = "button";
      look.title = "Look it up";
      look.addEventListener("click", () => {
        $("domain").value = key.rule.split(".")[0];
        $("entries").value = key.key.split("|").join("\n");
        lookUp();
        $("found").scrollIntoView({ block: "nearest" });
      });
    } else {
      cell.textContent = `#${key.token}`;
      cell.title = "A hash; admin.show_keys shows the value";
    }
    const doubt = key.error >= 0.1 ? `may be too high by ${number(key.error)}` : "";
    return cells(row, [[key.rule], [number(key.per_second), "n", doubt]]);
  });
  const focused = document.activeElement && document.activeElement.closest("#key-rows tr");
  $("key-rows").replaceChildren(...rows);
  refocus("key-rows", "key", focused);
  $("no-keys").hidden = rows.length > 0;
}

function chooseRule(rule) {
  chosen = rule;
  $("rates-of").textContent = rule || "all rules";
  $("all-rules").hidden = rule === null;
  showRules();
  showChart();
}

// === the chart ===

function points() {
  const sum = (rates, name) => {
    if (chosen !== null) return (rates.get(chosen) || { [name]: 0 })[name];
    let all = 0;
    for (const rate of rates.values()) all += rate[name];
    return all;
  };
  return [past.map(([at]) => at), past.map(([, it]) => sum(it, "admitted")),
    past.map(([, it]) => sum(it, "refused"))];
}

function showChart() {
  if (chart) {
    chart.setData(points());
    return;
  }
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 } };
  const line = (label, name) => ({ label, stroke: colour(name), width: 2,
    value: (_, value) => value == null ? "–" : number(value) });
  chart = new uPlot({
    width: $("chart").clientWidth, height: 190,
    series: [{}, line("admitted", "--admitted"), line("refused", "--refused")],
    axes: [axis, { ...axis, size: 60, values: (_, all) => all.map(number) }],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
  }, points(), $("chart"));
}

function redraw() {
  if (chart) chart.destroy();
  chart = null;
  if (picture) showChart();
}

// === one key ===

async function lookUp() {
  const entries = $("entries").value.split("\n").map((it) => it.trim()).filter(Boolean);
  const pairs = entries.map((entry) => {
    const at = entry.indexOf("=");
    return at < 0 ? [entry, ""] : [entry.slice(0, at), entry.slice(at + 1)];
  });
  const query = [["domain", $("domain").value], ...pairs]
    .map((pair) => pair.map(encodeURIComponent).join("=")).join("&");
  try {
    const response = await ask(`../key?${query}`);
    const report = await response.json();
    if (response.ok) showFound(report);
    else $("found").replaceChildren(element("p", report.error || "refused", "bad"));
  } catch (error) {
    $("found").replaceChildren(element("p", `no answer: ${error.message}`, "bad"));
  }
}

function showFound(report) {
  const list = element("dl");
  const say = (name, text, kind) => list.append(element("dt", name), element("dd", text, kind));
  const hits = Math.max(1, Math.floor(Number($("hits").value)) || 1);
  say("rule", report.rule ? `${report.rule} (${report.mode})` : "none matches: it is not limited");
  say("token", report.token);
  say("owner", report.owners.map((it) => `${it.node} (${it.region})`).join(", ") || "–");
  if (report.replicas.length) say("copies at", report.replicas.join(", "));
  const isBlocked = Number.isFinite(report.blocked_for_ms);
  const fits = !isBlocked && report.limits.every((limit) => limit.remaining >= hits);
  const would = report.shadow || fits;
  const how = report.source === "fallback" ? ", by on_unavailable: no owner answered"
    : isBlocked ? ", blocked by hand" : report.known_by ? `, as far as ${report.known_by} knows` : "";
  if (report.rule) {
    say("a request", `of ${hits} would be ${would ? "admitted" : "refused"}${how}`,
      would ? "good" : "bad");
  }
  for (const limit of report.limits) {
    const used = Math.max(0, limit.limit - limit.remaining);
    say(`${limit.limit} per ${duration(limit.window_ms / 1000)}`, `${used} used, `
      + `${limit.remaining} left, all in ${duration(Math.ceil(limit.reset_ms / 1000))} `
      + `(${limit.algorithm})`);
  }
  $("found").replaceChildren(list);
}

// === the connection ===

const ask = (path, options = {}) => fetch(path, {
  ...options, cache: "no-store", credentials: "omit",
  headers: token ? { Authorization: `Bearer ${token}` } : {},
});

function link(text, isLost) {
  if ($("link").textContent !== text) $("link").textContent = text;
  $("link").className = isLost ? "lost" : "";
}

let entered = null; // resolves when a token is entered

function askForToken() {
  $("main").hidden = true;
  $("login").hidden = false;
  if (token) $("login-error").textContent = "not this one";
  token = null;
  sessionStorage.removeItem("tidegate-token");
  $("token").focus();
  return new Promise((resolve) => { entered = resolve; });
}

// One stream, while the page can be seen: it costs the node nothing in the background.
const seen = () => new Promise((resolve) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    resolve();
  };
  document.addEventListener("visibilitychange", look);
  look();
});

async function follow() {
  await seen();
  const stop = new AbortController();
  let timer = null;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENT_MS);
  };
  const hide = () => { if (document.hidden) stop.abort(); };
  document.addEventListener("visibilitychange", hide);
  try {
    alive();
    const response = await ask("../events", { signal: stop.signal });
    if (response.status === 401) {
      clearTimeout(timer);
      link("a token is needed", false);
      return await askForToken();
    }
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the node ended the stream");
      alive();
      text += value;
      const end = text.lastIndexOf("\n\n");
      if (end < 0) continue;
      const events = text.slice(0, end).split("\n\n");
      text = text.slice(end + 2);
      // The newest is the whole picture.
      const data = events.reverse().flatMap((it) => it.split("\n"))
        .find((it) => it.startsWith("data: "));
      if (!data) continue;
      picture = JSON.parse(data.slice(6));
      link(`seen by ${picture.node}`, false);
      measure();
      show();
    }
  } catch (error) {
    const why = error.name === "AbortError" ? "no picture in time" : error.message;
    link(`connection lost: ${why}`, true);
    base = null;
  } finally {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", hide);
    stop.abort();
  }
  await new Promise((resolve) => setTimeout(resolve, 1000));
}

// === what people do ===

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("tidegate-token", token);
  $("token").value = "";
  if (entered) entered();
});
$("look").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp();
});
$("all-rules").addEventListener("click", () => chooseRule(null));

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  redraw();
}

function toggleTheme() {
  const now = document.documentElement.dataset.theme
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const other = now === "dark" ? "light" : "dark";
  localStorage.setItem("tidegate-theme", other);
  setTheme(other);
}

$("theme").addEventListener("click", toggleTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea");
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !$("login").hidden) return;
  const action = {
    "/": () => $("domain").focus(), m: () => $("members").focus(), t: toggleTheme,
  }[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});
new ResizeObserver(() => {
  if (chart) chart.setSize({ width: $("chart").clientWidth, height: 190 });
}).observe($("chart"));

setTheme(localStorage.getItem("tidegate-theme"));
(async () => {
  for (;;) await follow();
})();
