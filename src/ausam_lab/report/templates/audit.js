"use strict";
// The review of an audit. Every sample that the page holds is a row: a position in the columns of `data`, in the order
// of the ranking. Decisions are kept in the browser under the run's id; names reach the page as text only, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.index.length;
const rowOf = new Map(data.index.map((index, row) => [index, row]));
const stratumOf = new Map(data.review.row.map((row, i) => [row, data.review.stratum[i]]));
const byId = (id) => document.getElementById(id);
const nameOf = (label) => (label < 0 ? "" : data.names[label]);
const many = (n) => n.toLocaleString("en");

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function say(text) {
  byId("message").textContent = text;
  byId("message").hidden = !text;
}

// -- decisions ----------------------------------------------------------------------------------------------------
// A decision is [kind, label]: keep, relabel, remove or unsure, and the new class of a relabelled sample, otherwise -1.

const KEY = `ausam-audit:${data.id}`;
const decisions = new Map(); // of rows
const elsewhere = new Map(); // of samples, by index, that this page does not hold: they are exported again
const undone = []; // per action, the rows with what was decided before

function save() {
  const entries = [...decisions].map(([row, decision]) => [data.index[row], ...decision]);
  const others = [...elsewhere].map(([index, decision]) => [index, ...decision]);
  try {
    localStorage.setItem(KEY, JSON.stringify([...entries, ...others]));
  } catch (error) {
    say("This browser does not keep decisions. Download decisions.csv before you close the page.");
  }
}

function load() {
  try {
    for (const [index, ...decision] of JSON.parse(localStorage.getItem(KEY)) ?? []) enter(index, decision);
  } catch (error) {
    say("The decisions that this browser kept cannot be read. Import decisions.csv, if you have downloaded it.");
  }
}

function enter(index, decision) {
  if (rowOf.has(index)) decisions.set(rowOf.get(index), decision);
  else elsewhere.set(index, decision);
}

// Decide about some rows; `label` is a class, or null for the likely class of each.
function decide(which, kind, label = -1) {
  const before = [];
  for (const row of which) {
    let decision = [kind, -1];
    if (kind === "relabel") {
      const to = label ?? data.likely[row];
      if (to < 0) continue;
      decision = to === data.given[row] ? ["keep", -1] : ["relabel", to];
    }
    before.push([row, decisions.get(row)]);
    decisions.set(row, decision);
  }
  if (!before.length) return say("No other class is likely here. Type the name of a class, or press R.");
  say("");
  undone.push(before);
  save();
  next(which);
  changed();
}

function undo() {
  const before = undone.pop();
  if (!before) return;
  for (const [row, decision] of before) decision ? decisions.set(row, decision) : decisions.delete(row);
  save();
  anchor = cursor = Math.max(0, view.indexOf(before[0][0]));
  changed();
}

// -- files --------------------------------------------------------------------------------------------------------

// The rule of ausam.audit.review.harmless: an apostrophe wherever a spreadsheet could begin a formula.
const harmless = (text) =>
  text.replace(/(?<![^;,\t\r\n])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n'])/g, "'");
const cell = (value) => (typeof value === "number" ? String(value) : `"${harmless(value).replaceAll('"', '""')}"`);

function toCsv() {
  const lines = [...decisions]
    .sort(([a], [b]) => a - b)
    .map(([row, [kind, label]]) => [data.index[row], pathOf(row), nameOf(data.given[row]), kind, nameOf(label)]);
  for (const [index, [kind, label]] of elsewhere) lines.push([index, "", "", kind, nameOf(label)]);
  const head = "index,path,given,decision,new_label";
  return [head, ...lines.map((line) => line.map(cell).join(","))].join("\n") + "\n";
}

function fromCsv(text) {
  const lines = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const [line, letter] = [lines.at(-1), text[i]];
    if (quoted && letter === '"' && text[i + 1] === '"') line[line.length - 1] += text[i++];
    else if (letter === '"') quoted = !quoted;
    else if (!quoted && letter === ",") line.push("");
    else if (!quoted && (letter === "\n" || letter === "\r")) lines.push([""]);
    else line[line.length - 1] += letter;
  }
  return lines.filter((line) => line.length > 1 || line[0]);
}

function importCsv(text) {
  const [head, ...lines] = fromCsv(text.replace(/^\ufeff/, ""));
  const [index, kind, label] = ["index", "decision", "new_label"].map((name) => (head ?? []).indexOf(name));
  if (index < 0 || kind < 0 || label < 0) return say("This is no decisions.csv: a column index, decision or new_label is missing.");
  const classes = new Map(data.names.map((name, i) => [harmless(name), i]));
  data.names.forEach((name, i) => classes.set(name, i));
  const [before, refused] = [[], []];
  for (const line of lines) {
    const to = line[kind] === "relabel" ? classes.get(line[label]) : -1;
    const known = ["keep", "relabel", "remove", "unsure"].includes(line[kind]) && to !== undefined;
    if (!known || !/^\d+$/.test(line[index])) refused.push(line[index]);
    else {
      const row = rowOf.get(Number(line[index]));
      if (row !== undefined) before.push([row, decisions.get(row)]);
      enter(Number(line[index]), [line[kind], to]);
    }
  }
  if (before.length) undone.push(before);
  save();
  changed();
  const bad = refused.length ? ` ${refused.length} rows were left out, the first about sample "${refused[0]}": its decision or class is not known here.` : "";
  say(`${many(lines.length - refused.length)} decisions were imported.${bad}`);
}

function download(name, text) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

// -- the share of wrong labels: the same estimate as ausam.audit.share.Review.share ---------------------------------

function atMost(k, n, p) {
  let [sum, combinations] = [0, 1];
  for (let i = 0; i <= k; i++) {
    sum += combinations * p ** i * (1 - p) ** (n - i);
    combinations = (combinations * (n - i)) / (i + 1);
  }
  return sum;
}

function solve(rising, value) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 50; i++) {
    const middle = (low + high) / 2;
    if (rising(middle) < value) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

function interval(k, n, size) {
  if (n >= size) return [k / n, k / n];
  const low = k ? solve((p) => 1 - atMost(k - 1, n, p), 0.025) : 0;
  return [low, k < n ? solve((p) => 1 - atMost(k, n, p), 0.975) : 1];
}

// Reviewed samples and wrong labels in each stratum.
function counts() {
  const [n, k] = [data.review.sizes.map(() => 0), data.review.sizes.map(() => 0)];
  for (const [row, stratum] of stratumOf) {
    const kind = decisions.get(row)?.[0] ?? "unsure";
    n[stratum] += kind !== "unsure";
    k[stratum] += kind !== "unsure" && kind !== "keep";
  }
  return [n, k];
}

// The share with its interval; null while a stratum has no review.
function share() {
  const { sizes } = data.review;
  const [n, k] = counts();
  if (!n.length || n.includes(0)) return null;
  let [estimate, below, above] = [0, 0, 0];
  sizes.forEach((size, i) => {
    const [weight, p, [low, high]] = [size / data.n, k[i] / n[i], interval(k[i], n[i], size)];
    estimate += weight * p;
    below += (weight * (p - low)) ** 2;
    above += (weight * (high - p)) ** 2;
  });
  const reviewed = n.reduce((a, b) => a + b);
  const [low, high] = [Math.max(0, estimate - Math.sqrt(below)), Math.min(1, estimate + Math.sqrt(above))];
  return { share: estimate, low, high, low_if_slips: Math.max(0, (low - 0.05) / 0.9), reviewed };
}

// How many of the next samples of the ranking, undecided ones, are probably wrong: [that number, how many samples].
function expectedWrong(count = 500) {
  const [n, k] = counts();
  const decided = new Set([...decisions.keys()].map((row) => data.rank[row]));
  let [sum, seen, rank] = [0, 0, 0];
  data.review.sizes.forEach((size, stratum) => {
    for (const end = rank + size; rank < end; rank++) {
      if (decided.has(rank) || seen === count) continue;
      seen++;
      sum += k[stratum] / Math.max(1, n[stratum]);
    }
  });
  return [sum, seen];
}

function paintShare() {
  const found = share();
  const percent = (part) => (100 * part).toFixed(1);
  let text = "The share is estimated as soon as each part of the ranking has a reviewed sample.";
  if (found) {
    const [wrong, following] = expectedWrong();
    text = `${percent(found.share)} % of the labels are wrong (95 % interval ${percent(found.low)} to ${percent(found.high)}, from ` +
      `${found.reviewed} reviewed samples; from ${percent(found.low_if_slips)} if up to 5 % of the reviews are mistaken). About ${Math.round(wrong)} of the next ` +
      `${following} undecided samples of the ranking are probably wrong.`;
  }
  byId("share").textContent = text;
  byId("share").hidden = filter.which !== "drawn";
}

// -- filters: `view` is the rows that match, in order --------------------------------------------------------------

const filter = { which: data.flagged ? "flagged" : "all", given: "", likely: "", decided: "", search: "", area: null };
let view = [];
let [cursor, anchor] = [0, 0]; // positions in the view; the selection is the range between them

const pathOf = (row) => data.path[row] || data.text[row];
const words = (row) => `${data.index[row]} ${data.path[row]} ${data.text[row]}`.toLowerCase();
const isFlagged = (row) => data.marked[row] === 1;
const TESTS = {
  which: (row) => filter.which === "all" || (filter.which === "drawn" ? stratumOf.has(row) : isFlagged(row)),
  given: (row) => filter.given === "" || data.given[row] === Number(filter.given),
  likely: (row) => filter.likely === "" || data.likely[row] === Number(filter.likely),
  decided: (row) => {
    const kind = decisions.get(row)?.[0];
    return filter.decided === "" || (filter.decided === "any" ? !!kind : (kind ?? "none") === filter.decided);
  },
  search: (row) => filter.search === "" || words(row).includes(filter.search.toLowerCase()),
  area: (row) => {
    if (!filter.area) return true;
    const [left, right, low, high] = filter.area;
    return data.x[row] >= left && data.x[row] <= right && data.y[row] >= low && data.y[row] <= high;
  },
};
// The rows that pass all filters but some.
function matching(...without) {
  const tests = Object.keys(TESTS).filter((name) => !without.includes(name)).map((name) => TESTS[name]);
  return Array.from({ length: rows }, (_, row) => row).filter((row) => tests.every((test) => test(row)));
}

function refilter() {
  view = matching();
  const key = { pair: (r) => [data.given[r], data.likely[r]], given: (r) => [data.given[r]], text: (r) => [pathOf(r)] }[byId("order").value];
  if (key) {
    const keys = new Map(view.map((row) => [row, key(row)]));
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    view.sort((a, b) => compare(keys.get(a)[0], keys.get(b)[0]) || compare(keys.get(a)[1], keys.get(b)[1]) || a - b);
  } else if (filter.which === "drawn") view.sort((a, b) => ((a * 7919) % 1009) - ((b * 7919) % 1009)); // not in the order of suspicion
  cursor = anchor = 0;
  for (const name of ["which", "given", "likely", "decided", "search"]) byId(name).value = filter[name];
  byId("matches").textContent = `${many(view.length)} shown${filter.area ? ", in an area of the map" : ""}`;
  byId("none").hidden = view.length > 0;
  repaint();
  changed();
  paintHeat();
  paintMap();
}

function choices(select, options) {
  byId(select).replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
}

function count(list) {
  const counted = new Map();
  for (const value of list) counted.set(value, (counted.get(value) ?? 0) + 1);
  return counted;
}

function fillFilters() {
  choices("which", [
    ...(data.flagged ? [["flagged", `flagged: ${many(data.flagged)}`]] : []),
    ["all", `flagged or not: ${many(rows)}`],
    ["drawn", `drawn for the share: ${many(stratumOf.size)}`],
  ]);
  const all = ["", "all"];
  const classes = (of) => [...count(of)].filter(([label]) => label >= 0).sort(([a], [b]) => a - b).map(([label]) => [label, nameOf(label)]);
  choices("given", [all, ...classes(data.given)]);
  choices("likely", [all, ...classes(data.likely)]);
  choices("decided", [all, ["none", "not reviewed"], ["any", "reviewed"], ...["keep", "relabel", "remove", "unsure"].map((kind) => [kind, kind])]);
}

// -- cards: only those near the window exist ------------------------------------------------------------------------

const long = Math.max(...data.names.map((name) => name.length)) > 7; // then the likely class has a line of its own
const [GAP, NARROW, WORDS, MARGIN] = [8, 148, long ? 102 : 84, 800]; // pixels
const grid = byId("grid");
const cards = new Map(); // by position in the view
let [columns, side] = [1, NARROW];

function measure() {
  columns = Math.max(2, Math.floor((grid.clientWidth + GAP) / (NARROW + GAP)));
  side = Math.floor((grid.clientWidth - GAP * (columns - 1)) / columns);
  grid.style.height = `${Math.ceil(view.length / columns) * (side + WORDS + GAP)}px`;
}

function repaint() {
  measure();
  for (const card of cards.values()) card.remove();
  cards.clear();
  paint();
}

function paint() {
  const step = side + WORDS + GAP;
  const top = -grid.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor((top - MARGIN) / step) * columns);
  const end = Math.min(view.length, Math.ceil((top + innerHeight + MARGIN) / step) * columns);
  for (const [position, card] of cards) {
    if (position >= first && position < end) continue;
    card.remove();
    cards.delete(position);
  }
  for (let position = first; position < end; position++) {
    if (cards.has(position)) continue;
    const card = cardOf(position);
    card.style.cssText = `width:${side}px;height:${side + WORDS}px;left:${(position % columns) * (side + GAP)}px;top:${Math.floor(position / columns) * step}px`;
    cards.set(position, card);
    grid.append(card);
    mark(position);
  }
}

const thumb = (row) => (data.thumb[row] ? (data.folder || "data:image/") + data.thumb[row] : "");

function picture(row, source = thumb(row)) {
  if (!source) return make("div", { className: "words", textContent: pathOf(row) });
  const image = make("img", { src: source, alt: `sample ${data.index[row]}`, draggable: false });
  if (data.side[row] <= 48) image.className = "pixels";
  return image;
}

function buttons(row, inWords) {
  const options = [
    ["keep", inWords ? "Keep (K)" : "✓", "Keep the label (K)", () => decide(chosen(row), "keep")],
    ["likely", inWords ? "Likely class (Enter)" : "→", `Relabel to ${nameOf(data.likely[row]) || "the likely class"} (Enter)`, () => decide(chosen(row), "relabel", null)],
    ["other", inWords ? "Another class (R)" : "…", "Relabel to another class (R)", () => pick(chosen(row))],
    ["remove", inWords ? "Remove (X)" : "✕", "Remove the sample (X)", () => decide(chosen(row), "remove")],
    ["unsure", inWords ? "Unsure (U)" : "?", "Unsure (U)", () => decide(chosen(row), "unsure")],
  ];
  return make("div", { className: "choices" }, ...options.map(([kind, textContent, title, onclick]) => {
    const button = make("button", { textContent, title, onclick, tabIndex: inWords ? 0 : -1, disabled: kind === "likely" && data.likely[row] < 0 });
    button.setAttribute("aria-label", title);
    button.setAttribute("aria-pressed", choiceOf(row) === kind);
    button.dataset.kind = kind;
    return button;
  }));
}

function choiceOf(row) {
  const [kind, label] = decisions.get(row) ?? [];
  return kind === "relabel" ? (label === data.likely[row] ? "likely" : "other") : kind;
}

function labels(row) {
  const [kind, label] = decisions.get(row) ?? [];
  const to = { keep: "kept", remove: "removed", unsure: "unsure", relabel: `⇒ ${nameOf(label)}` }[kind];
  const likely = data.likely[row] < 0 ? [] : [make("span", { className: "to", textContent: `→ ${nameOf(data.likely[row])}` })];
  const after = to ? [make("span", { className: "to", textContent: to })] : likely;
  const title = `given ${nameOf(data.given[row])}, likely ${nameOf(data.likely[row]) || "unknown"}`;
  return make("div", { className: long ? "labels long" : "labels", title }, make("span", { textContent: nameOf(data.given[row]) }), ...after);
}

function cardOf(position) {
  const row = view[position];
  const card = make("div", { className: "card" });
  card.dataset.index = data.index[row];
  card.dataset.position = position;
  card.classList.toggle("flagged", isFlagged(row));
  const about = make("div", { className: "soft" }, make("span", { textContent: `#${many(data.rank[row] + 1)}` }), make("span", { textContent: (data.thumb[row] && pathOf(row).split("/").at(-1)) || data.index[row], title: pathOf(row) }));
  card.append(make("div", { className: "picture" }, picture(row)), labels(row), about, buttons(row, false));
  return card;
}

function mark(position) {
  const [card, row] = [cards.get(position), view[position]];
  if (!card) return;
  card.classList.toggle("cursor", position === cursor);
  card.classList.toggle("chosen", anchor !== cursor && position >= Math.min(anchor, cursor) && position <= Math.max(anchor, cursor));
  card.classList.toggle("done", decisions.has(row));
  card.querySelector(".labels").replaceWith(labels(row));
  for (const button of card.querySelectorAll(".choices button")) button.setAttribute("aria-pressed", choiceOf(row) === button.dataset.kind);
}

// What a button or key is about: the selection if it holds the row, otherwise the row alone.
function chosen(row = view[cursor]) {
  const selected = view.slice(Math.min(anchor, cursor), Math.max(anchor, cursor) + 1);
  if (selected.includes(row)) return selected;
  anchor = cursor = Math.max(0, view.indexOf(row));
  return row === undefined ? [] : [row];
}

function next(which) {
  const last = Math.max(...which.map((row) => view.indexOf(row)));
  anchor = cursor = Math.min(view.length - 1, Math.max(0, last + 1));
}

function changed() {
  for (const position of cards.keys()) mark(position);
  const all = matching("given", "likely", "decided", "search", "area");
  const done = all.filter((row) => decisions.has(row)).length;
  const kind = { flagged: "flagged ", drawn: "drawn " }[filter.which] ?? "";
  byId("count").textContent = `${many(done)} of ${many(all.length)} ${kind}reviewed`;
  byId("progress").max = all.length;
  byId("progress").value = done;
  byId("undo").disabled = !undone.length;
  byId("export").disabled = !decisions.size && !elsewhere.size;
  paintShare();
  if (byId("detail").open) showDetail();
  reveal();
}

function move(to, extend) {
  cursor = Math.min(view.length - 1, Math.max(0, to));
  if (!extend) anchor = cursor;
  for (const position of cards.keys()) mark(position);
  reveal();
  if (byId("detail").open) showDetail();
}

// Scroll so that the card of the cursor is between the bar and the end of the window.
function reveal() {
  if (document.activeElement !== grid && !byId("detail").open) return;
  const step = side + WORDS + GAP;
  const top = grid.getBoundingClientRect().top + Math.floor(cursor / columns) * step;
  const bar = byId("bar").getBoundingClientRect().height + GAP;
  if (top < bar) scrollBy(0, top - bar);
  else if (top + step > innerHeight) scrollBy(0, top + step - innerHeight);
}

// -- one sample at full size, with others of both classes -----------------------------------------------------------

function showDetail() {
  const row = view[cursor];
  if (row === undefined) return byId("detail").close();
  const whole = picture(row, data.file[row] || thumb(row));
  whole.classList.add("whole");
  if (data.side[row] <= 48) whole.classList.add("small");
  whole.onerror = () => thumb(row) && whole.src !== thumb(row) && (whole.src = thumb(row));
  const facts = [["rank", `${many(data.rank[row] + 1)} of ${many(data.n)}, ${isFlagged(row) ? "flagged" : "not flagged"}`], ["loss", data.loss[row] ?? "never visited"], ["sample", data.index[row]], ...(data.thumb[row] && pathOf(row) ? [["file", pathOf(row)]] : [])];
  const list = make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
  const open = data.file[row] ? [make("a", { href: data.file[row], target: "_blank", rel: "noopener", textContent: "Open the file" })] : [];
  const right = make("div", {}, make("h3", { textContent: `${cursor + 1} of ${many(view.length)}` }), labels(row), buttons(row, true), list, ...open);
  for (const label of new Set([data.given[row], data.likely[row]])) {
    const others = label < 0 ? [] : examples(label, row);
    if (!others.length) continue;
    const title = `${label === data.given[row] ? "Given" : "Likely"}: ${nameOf(label)}`;
    right.append(make("h3", { textContent: title }), make("div", { className: "others" }, ...others.map((other) => picture(other))));
  }
  byId("detail-inside").replaceChildren(make("div", { className: "sample" }, make("div", {}, whole), right));
  if (!byId("detail").open) byId("detail").showModal();
  byId("detail-inside").focus(); // on no button: Enter is a key of the review
}

// The samples of a class that the model accepts best, and that nobody has found wrong.
function examples(label, besides) {
  const found = [];
  for (let row = rows - 1; row >= 0 && found.length < 6; row--) {
    const kind = decisions.get(row)?.[0] ?? "keep";
    if (data.given[row] === label && row !== besides && kind === "keep" && !isFlagged(row)) found.push(row);
  }
  return found;
}

// -- the choice of a class by typing ---------------------------------------------------------------------------------

let picking = [];

function pick(which, typed = "") {
  if (!which.length) return;
  picking = which;
  byId("typed").value = typed;
  offer();
  byId("picker").showModal();
  byId("typed").focus();
}

function offered() {
  const typed = byId("typed").value.trim().toLowerCase();
  const all = data.names.map((name, label) => [name.toLowerCase(), label]);
  const worth = ([name, label]) => (name === typed ? 0 : String(label) === typed ? 1 : name.startsWith(typed) ? 2 : name.includes(typed) ? 3 : 4);
  return all.filter((one) => worth(one) < 4).sort((a, b) => worth(a) - worth(b) || a[1] - b[1]).slice(0, 12).map(([, label]) => label);
}

function offer() {
  byId("options").replaceChildren(...offered().map((label) => make("button", { type: "button", textContent: nameOf(label), onclick: () => take(label) })));
}

function take(label) {
  byId("picker").close();
  if (label !== undefined) decide(picking, "relabel", label);
}

// -- the two pictures: classes that are confused, and the map ---------------------------------------------------------

const MOST = 16; // classes in the heat map

function paintHeat() {
  const found = matching("given", "likely").filter((row) => data.likely[row] >= 0);
  const pairs = count(found.map((row) => `${data.given[row]},${data.likely[row]}`));
  const sizes = count(found.flatMap((row) => [data.given[row], data.likely[row]]));
  const shown = [...sizes].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([label]) => label).sort((a, b) => a - b);
  const largest = Math.max(1, ...pairs.values());
  const heading = (label, className) => make("span", { className, textContent: nameOf(label), title: nameOf(label) });
  const cells = [make("span"), ...shown.map((label) => heading(label, nameOf(label).length > 3 ? "column" : "short"))];
  for (const given of shown) {
    cells.push(heading(given, "row"));
    for (const likely of shown) {
      const n = pairs.get(`${given},${likely}`) ?? 0;
      const title = `given ${nameOf(given)}, likely ${nameOf(likely)}: ${n}`;
      const button = make("button", { textContent: n || "", title, disabled: !n });
      button.onclick = () => setPair(given, likely);
      button.setAttribute("aria-label", title);
      button.setAttribute("aria-pressed", filter.given === String(given) && filter.likely === String(likely));
      button.style.setProperty("--heat", n ? 0.12 + (0.88 * n) / largest : 0);
      cells.push(button);
    }
  }
  byId("heat").style.gridTemplateColumns = `minmax(0,2.2fr) repeat(${shown.length},minmax(0,1fr))`;
  byId("heat").replaceChildren(...cells);
}

function setPair(given, likely) {
  const same = filter.given === String(given) && filter.likely === String(likely);
  Object.assign(filter, { given: same ? "" : String(given), likely: same ? "" : String(likely) });
  refilter();
}

const canvas = document.querySelector("#map canvas");
const EDGE = 30;
let drag = null; // while the mouse draws an area: where it began and is, in pixels

// Coordinates of the data go from 0 to 1000.
function place() {
  const [width, height] = [canvas.clientWidth - EDGE - 6, canvas.clientHeight - EDGE + 6];
  return {
    x: (value) => EDGE + (value / 1000) * width,
    y: (value) => 4 + (1 - value / 1000) * (height - 8),
    back: (x, y) => [((x - EDGE) / width) * 1000, (1 - (y - 4) / (height - 8)) * 1000],
  };
}

function paintMap() {
  if (byId("map").hidden || !canvas.clientWidth) return;
  const sharp = devicePixelRatio || 1;
  Object.assign(canvas, { width: canvas.clientWidth * sharp, height: canvas.clientHeight * sharp });
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(name);
  const { x, y } = place();
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("--soft");
  pen.strokeStyle = colour("--rule");
  for (const [at, text] of data.ticks.x) {
    pen.textAlign = "center";
    pen.fillText(text, x(at), canvas.clientHeight - 8);
    pen.strokeRect(x(at), 4, 0, canvas.clientHeight - EDGE);
  }
  for (const [at, text] of data.ticks.y) {
    pen.textAlign = "right";
    pen.fillText(text, EDGE - 4, y(at) + 4);
    pen.strokeRect(EDGE, y(at), canvas.clientWidth - EDGE - 6, 0);
  }
  const dot = (across, up, size) => across >= 0 && pen.fillRect(x(across) - size / 2, y(up) - size / 2, size, size);
  pen.globalAlpha = 0.5;
  pen.fillStyle = colour("--c0");
  data.cloud.x.forEach((across, i) => dot(across, data.cloud.y[i], 3));
  for (let row = rows - 1; row >= 0; row--) {
    pen.globalAlpha = isFlagged(row) ? 0.8 : 0.5;
    pen.fillStyle = colour(isFlagged(row) ? "--c1" : "--c0");
    dot(data.x[row], data.y[row], isFlagged(row) ? 4 : 3);
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colour("--ink");
  if (drag) pen.strokeRect(drag[0], drag[1], drag[2] - drag[0], drag[3] - drag[1]);
  else if (filter.area) {
    const [left, right, low, high] = filter.area;
    pen.strokeRect(x(left), y(high), x(right) - x(left), y(low) - y(high));
  }
}

canvas.onpointerdown = (event) => {
  canvas.setPointerCapture(event.pointerId);
  drag = [event.offsetX, event.offsetY, event.offsetX, event.offsetY];
};
canvas.onpointermove = (event) => {
  if (!drag) return;
  drag.splice(2, 2, event.offsetX, event.offsetY);
  requestAnimationFrame(paintMap);
};
canvas.onpointercancel = () => (drag = null);
canvas.onpointerup = () => {
  if (!drag) return;
  const [x0, y0, x1, y1] = drag;
  const [[a, b], [c, d]] = [place().back(x0, y0), place().back(x1, y1)];
  drag = null;
  const large = Math.abs(x1 - x0) > 4 && Math.abs(y1 - y0) > 4; // a click clears the area
  filter.area = large ? [Math.min(a, c), Math.max(a, c), Math.min(b, d), Math.max(b, d)] : null;
  if (large && filter.which === "flagged") filter.which = "all";
  refilter();
};

// -- keys and buttons --------------------------------------------------------------------------------------------------

function key(event) {
  const field = event.target.closest("input, select, textarea");
  if (byId("picker").open || field || event.altKey || event.metaKey) return;
  if (event.ctrlKey && event.key !== "a") return;
  const inButton = event.target.closest("button, summary, a, label");
  if (inButton && ["Enter", " "].includes(event.key)) return;
  const actions = {
    ArrowLeft: () => move(cursor - 1, event.shiftKey),
    ArrowRight: () => move(cursor + 1, event.shiftKey),
    ArrowUp: () => move(cursor - columns, event.shiftKey),
    ArrowDown: () => move(cursor + columns, event.shiftKey),
    k: () => decide(chosen(), "keep"),
    x: () => decide(chosen(), "remove"),
    u: () => decide(chosen(), "unsure"),
    z: undo,
    r: () => pick(chosen()),
    Enter: () => decide(chosen(), "relabel", null),
    " ": () => (byId("detail").open ? byId("detail").close() : showDetail()),
    Escape: () => (byId("detail").open ? byId("detail").close() : move(cursor, false)),
  };
  const pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const action = event.ctrlKey ? () => ([anchor, cursor] = [0, view.length - 1]) && move(view.length - 1, true) : actions[pressed] ?? typing(event.key);
  if (!action || !view.length) return;
  event.preventDefault();
  if (!byId("detail").open) grid.focus({ preventScroll: true });
  action();
}

// A digit is the class of that name or number; any other letter begins the name of a class.
function typing(pressed) {
  if (!/^[\p{L}\p{N}]$/u.test(pressed)) return undefined;
  const named = data.names.indexOf(pressed);
  if (/^\d$/.test(pressed) && data.names.length <= 10 && (named >= 0 || Number(pressed) < data.names.length)) {
    return () => decide(chosen(), "relabel", named >= 0 ? named : Number(pressed));
  }
  return () => pick(chosen(), pressed);
}

grid.addEventListener("click", (event) => {
  const card = event.target.closest(".card");
  if (!card || event.target.closest("button")) return;
  grid.focus({ preventScroll: true });
  move(Number(card.dataset.position), event.shiftKey);
  if (event.target.closest(".picture") && !event.shiftKey) showDetail();
});
document.addEventListener("keydown", key);
for (const name of ["which", "given", "likely", "decided", "search"]) {
  byId(name).addEventListener(name === "search" ? "input" : "change", () => {
    filter[name] = byId(name).value;
    refilter();
  });
}
byId("order").onchange = refilter;
byId("clear").onclick = () => {
  Object.assign(filter, { given: "", likely: "", decided: "", search: "", area: null });
  refilter();
};
byId("show-drawn").onclick = () => {
  Object.assign(filter, { which: "drawn", given: "", likely: "", decided: "", search: "", area: null });
  refilter();
  byId("bar").scrollIntoView();
};
byId("more").onclick = () => byId("filters").classList.toggle("unfolded");
byId("undo").onclick = undo;
byId("export").onclick = () => download("decisions.csv", toCsv());
byId("import").onchange = async (event) => {
  const [file] = event.target.files;
  if (file) importCsv(await file.text());
  event.target.value = "";
};
byId("typed").oninput = offer;
byId("picker").querySelector("form").onsubmit = (event) => {
  event.preventDefault();
  take(offered()[0]);
};
byId("detail").onclick = (event) => event.target === byId("detail") && byId("detail").close(); // on the backdrop
addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
new ResizeObserver(() => (repaint(), paintMap())).observe(grid.parentElement);
byId("overview").ontoggle = () => (paintMap(), paint());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintMap);

byId("drawn").textContent = stratumOf.size;
byId("overview").open = innerWidth > 900;
fillFilters();
load();
refilter();
