"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const build = space => (name, attributes = {}, ...children) => {
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const element = build("http://www.w3.org/1999/xhtml"), svg = build("http://www.w3.org/2000/svg");
const math = build("http://www.w3.org/1998/Math/MathML");
// No "-0.00", and no "1 steps".
const nats = value => value === null ? "–" : value.toFixed(2).replace(/^-(0\.00)$/, "$1");
const rounded = value => value === null ? "–" : value.toFixed(0);
const counted = (number, thing) => `${number ?? "–"} ${thing}${number === 1 ? "" : "s"}`;
const option = (value, text) => element("option", { value }, text);
const known = values => values.filter(value => value !== null);  // null stands for NaN, and for what is missing
const mean = values => known(values).reduce((sum, value) => sum + value, 0) / known(values).length;
// A long list may exceed the limit on spread arguments.
const largestOf = (values, least) => known(values).reduce((a, b) => Math.max(a, b), least);

// ── shades: logarithmic, so that small changes are visible beside large ones; none below half of SMALL
const SMALL = 0.01;
const strength = (change, largest) =>
  Math.abs(change) < SMALL / 2 ? 0 : Math.min(1, Math.log1p(Math.abs(change) / SMALL) / Math.log1p(largest / SMALL));
const marks = largest => [...[0.01, 0.1, 1, 10].filter(mark => strength(mark, largest) > 0.25 && strength(mark, largest) < 0.75), largest];

// ── filters: a column's share of correct responses, and its mean length
const share = (problem, column) => mean(problem.columns[column].filter(r => r.correct !== null).map(r => Number(r.correct)));
const tokens = (problem, column) => mean(problem.columns[column].map(r => r.tokens));
const last = data.names.length - 1;
const changed = problem => share(problem, last) - share(problem, 0);
const FILTERS = last > 0 ? {
  "all": () => true,
  "became correct": p => changed(p) > 0,
  "became wrong": p => changed(p) < 0,
  "length changed most": p => Number.isFinite(tokens(p, last) - tokens(p, 0)),
} : { "all": () => true };
const ORDERS = { "length changed most": p => -Math.abs(tokens(p, last) - tokens(p, 0)) };
data.names.forEach((name, i) => {
  for (const correct of [true, false]) FILTERS[`${name}: ${correct ? "correct" : "wrong"}`] = p => p.columns[i].some(r => r.correct === correct);
});

let shown = [], position = 0;

function matches(problem) {
  const benchmark = by("benchmark").value, longer = Number(by("longer").value);
  return (benchmark === "all" || problem.benchmark === benchmark) && (longer <= 0 || problem.columns.flat().some(r => r.tokens > longer))
    && FILTERS[by("show").value](problem);
}

function filter() {
  shown = data.problems.filter(matches);
  const order = ORDERS[by("show").value];
  if (order) shown.sort((a, b) => order(a) - order(b));
  by("choice").replaceChildren(...shown.map((p, i) => option(i, `${i + 1} of ${shown.length}: ${p.text.join("").slice(0, 80)}`)));
  by("choice").disabled = !shown.length;
  show(0);
}

// ── how a problem is shown
function tree([tag, ...parts]) {
  const attributes = parts.length && typeof parts[0] === "object" && !Array.isArray(parts[0]) ? parts.shift() : {};
  return math(tag, attributes, ...parts.map(part => Array.isArray(part) ? tree(part) : part));
}

// Texts and formulas alternate.
function pieces(parts) {
  return parts.map((part, i) => {
    if (i % 2 === 0 || !by("formulas").checked) return part;
    const drawn = tree(data.formulas[part]);
    const kind = drawn.getAttribute("display") === "block" ? "display" : part.length > 50 ? "wide" : "";
    return element("span", { class: kind, title: part }, drawn);
  });
}

// ── a page may hold millions of characters: of a long text or list a part is drawn, and more when it is asked for
const CHARACTERS = 5000, FORMULA = 60, STEPS = 100, FACTOR = 10;  // a formula costs as much as 60 characters or more

function more(node, label, draw) {
  const button = element("button", { class: "more" }, label);
  button.addEventListener("click", () => { button.remove(); draw(); node.focus({ preventScroll: true }); });
  node.append(button);
}

// Parts of at most so many characters, and the others; a formula is not divided.
function divided(parts, limit) {
  let used = 0;
  for (let i = 0; i < parts.length; i++) {
    const room = Math.max(0, limit - used);
    if (i % 2 === 0 && parts[i].length > room) return [[...parts.slice(0, i), parts[i].slice(0, room)], [parts[i].slice(room), ...parts.slice(i + 1)]];
    used += i % 2 ? Math.max(FORMULA, parts[i].length) : parts[i].length;
  }
  return [parts, null];
}

function written(node, parts, limit = CHARACTERS) {
  const [first, others] = divided(parts, limit);
  node.append(...pieces(first));
  if (others) {
    const left = others.reduce((sum, part) => sum + part.length, 0);
    more(node, `show more (${counted(left.toLocaleString("en"), "character")})`, () => written(node, others, limit * FACTOR));
  }
  return node;
}

function listed(node, items, draw, first = 0, limit = STEPS) {
  node.append(...items.slice(first, first + limit).map((item, k) => draw(item, first + k)));
  const left = items.length - first - limit;
  if (left > 0) more(node, `show more (${counted(left.toLocaleString("en"), "step")})`, () => listed(node, items, draw, first + limit, limit * FACTOR));
  return node;
}

function trimmed(parts) {
  const copy = [...parts];
  copy[0] = copy[0].trimStart();
  copy[copy.length - 1] = copy.at(-1).trimEnd();
  return copy;
}

function curve(r, most) {
  const width = 400, height = 84, values = r.curve;
  const top = largestOf(values, -Infinity), low = -largestOf(values.map(v => v === null ? null : -v), -Infinity), high = Math.max(top, low + 1e-6);
  const x = k => 3 + (width - 6) * k / Math.max(1, values.length - 1);
  const y = v => 4 + (height - 8) * (high - v) / (high - low);
  const label = !known(values).length ? "Log-probability of the answer: –" : `Log-probability of the answer after 0 to ${counted(r.steps.length, "step")}: from ${nats(values[0])} to `
    + `${nats(values.at(-1))} nats per token, between ${nats(low)} and ${nats(top)}`;
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  r.steps.forEach((step, k) => {
    const tall = most > 0 ? step.penalty / most * height * 0.6 : 0;
    if (tall > 0) plot.append(svg("rect", { x: x(k) + 1, y: height - tall, width: Math.max(1, x(k + 1) - x(k) - 2), height: tall, fill: "var(--penalty)", opacity: 0.45 }));
  });
  plot.append(svg("polyline", { fill: "none", stroke: "var(--focus)", "stroke-width": 2, "vector-effect": "non-scaling-stroke",
    points: values.map((v, k) => v === null ? "" : `${x(k)},${y(v)}`).filter(Boolean).join(" ") }));
  const made = element("figure", { class: "curve" }, element("figcaption", { class: "dim" }, label), plot);
  if (r.known) made.append(element("figcaption", { class: "dim" }, r.known.steps === null ? "The answer is not known at the end of the thought."
    : `From ${r.known.steps ? `step ${r.known.steps}` : "the prompt"} on the answer is known: ${rounded(100 * r.known.share)}% of the thought follows.`));
  return made;
}

function legend(largest, most) {
  const stops = [], ticks = [element("span", { style: "left: 50%" }, "0")];
  for (let i = -10; i <= 10; i++) stops.push(`rgb(var(--${i < 0 ? "loss" : "gain"}) / ${(Math.abs(i) / 20).toFixed(3)}) ${50 + 5 * i}%`);
  for (const mark of marks(largest)) for (const sign of [-1, 1]) {
    const text = `${sign < 0 ? "-" : "+"}${mark === largest ? nats(mark) : mark}`;
    ticks.push(element("span", { style: `left: ${50 + 50 * sign * strength(mark, largest)}%` }, text));
  }
  const strip = element("div", { class: "legend", role: "img", "aria-label": `shades from -${nats(largest)} to +${nats(largest)} nats` },
    element("i", { style: `background: linear-gradient(to right, ${stops.join(", ")})` }), ...ticks);
  const bars = most > 0 ? `a full bar is a penalty of ${nats(most)} nats` : "no penalty";
  return element("div", {}, element("div", { class: "dim" }, `shade: change over a step, in nats; ${bars}`), strip);
}

function card(step, number, largest, most) {
  const shade = step.change < 0 ? "loss" : "gain";
  const numbers = element("div", { class: "numbers" }, element("b", {}, `step ${number + 1}`),
    element("span", {}, counted(step.tokens, "token")), element("span", {}, `gain ${nats(step.gain)}`));
  if (nats(step.change) !== nats(step.gain)) numbers.append(element("span", {}, `change ${nats(step.change)}`));
  if (Number.isFinite(step.need)) numbers.append(element("span", {}, `need ${nats(step.need)}`));
  if (step.penalty === null) numbers.append(element("span", {}, "penalty –"));
  if (step.penalty > 0) {
    const bar = element("span", { class: "bar", style: `--share: ${(step.penalty / most).toFixed(4)}` }, element("i"));
    numbers.append(element("span", { class: "penalty" }, `penalty ${nats(step.penalty)}`, bar));
  }
  const made = element("li", { class: "step", style: `--shade: var(--${shade}); --strength: ${strength(step.change, largest).toFixed(3)}` },
    numbers, written(element("div", { class: "text", tabindex: 0 }), trimmed(step.text)));
  if (step.observation) made.append(element("div", { class: "observed" }, element("b", { class: "numbers" }, `observation after turn ${step.turn}`),
    written(element("div", { class: "text dim", tabindex: 0 }), trimmed(step.observation))));
  return made;
}

const bounds = responses => {
  const steps = responses.flatMap(r => r.steps);
  return [largestOf(steps.map(s => Math.abs(s.change)), SMALL), largestOf(steps.map(s => s.penalty), 0)];
};
const whole = data.problems.map(p => bounds(p.columns.flat())).reduce(([a, b], [c, d]) => [Math.max(a, c), Math.max(b, d)], [SMALL, 0]);

function column(name, problem, responses) {
  if (!responses.length) return element("section", { class: "panel" }, element("h2", {}, name), element("p", { class: "dim" }, "no response to this problem"));
  const made = element("section", { class: "panel" }), choice = element("select", { "aria-label": `response of ${name}` });
  const verdict = r => r.correct === null ? "not graded" : r.correct ? "correct" : "wrong";
  responses.forEach((r, i) => choice.append(option(i, `${i + 1} of ${responses.length}: ${verdict(r)}, ${counted(r.tokens, "token")}`)));
  const fill = () => {
    const r = responses[choice.value], scale = by("scale").value;
    const [largest, most] = scale === "page" ? whole : bounds(scale === "problem" ? problem.columns.flat() : [r]);
    const title = element("h2", {}, name, element("span", { class: verdict(r) }, verdict(r)),
      element("span", { class: "dim" }, `${counted(r.tokens, "token")}, ${counted(r.steps.length, "step")}`));
    if (responses.length > 1) title.append(choice);
    const scored = r.steps.length ? [curve(r, most), legend(largest, most)] : [];
    made.replaceChildren(title, ...scored, listed(element("ol", { tabindex: -1 }), r.steps, (s, k) => card(s, k, largest, most)));
    if (r.rest.join("").trim()) made.append(written(element("div", { class: "rest text", tabindex: 0 }), trimmed(r.rest)));
  };
  choice.addEventListener("change", () => { fill(); choice.focus(); });
  fill();
  return made;
}

function show(index) {
  const inside = by("main").contains(document.activeElement);
  position = index;
  by("previous").disabled = index <= 0;
  by("next").disabled = index >= shown.length - 1;
  by("status").textContent = shown.length ? `Problem ${index + 1} of ${shown.length}` : "No problem matches the filters.";
  by("main").replaceChildren();
  if (!shown.length) return;
  by("choice").value = index;
  const problem = shown[index];
  by("main").append(
    element("div", { class: "panel text" }, written(element("div", { tabindex: -1 }), trimmed(problem.text)),
      written(element("div", { tabindex: -1 }, element("b", {}, "Answer: ")), problem.answer)),
    element("div", { class: "columns", style: `--count: ${data.names.length}` }, ...data.names.map((name, i) => column(name, problem, problem.columns[i]))));
  if (inside) by("main").focus({ preventScroll: true });
}

// ── the summary above: tables and curves
function table({ header, rows }) {
  const line = (name, cells) => element("tr", {}, ...cells.map(cell => element(name, {}, cell)));
  return element("table", {}, element("thead", {}, line("th", header)), element("tbody", {}, ...rows.map(row => line("td", row))));
}

function chart({ title, steps, lines }) {
  const width = 320, height = 170, left = 40, bottom = 22;
  const most = largestOf(Object.values(lines).flat(), 0), high = most > 1 ? most : 1;
  const x = s => left + (width - left - 8) * (s - steps[0]) / Math.max(1, steps.at(-1) - steps[0]), y = v => 8 + (height - bottom - 8) * (1 - v / high);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const v of [0, high / 2, high]) plot.append(
    svg("line", { x1: left, x2: width - 8, y1: y(v), y2: y(v), stroke: "var(--line)" }),
    svg("text", { x: left - 5, y: y(v) + 4, "text-anchor": "end" }, high > 10 ? v.toFixed(0) : v.toFixed(2)));
  for (const s of new Set([steps[0], steps.at(-1)])) plot.append(svg("text", { x: x(s), y: height - 6, "text-anchor": "middle" }, `${s}`));
  plot.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "step"));
  const names = element("div", { class: "dim" });
  Object.entries(lines).forEach(([name, values], i) => {
    const points = values.map((v, k) => v === null ? "" : `${x(steps[k]).toFixed(1)},${y(v).toFixed(1)}`).filter(Boolean);
    plot.append(svg("polyline", { points: points.join(" "), class: `line-${i}`, fill: "none", "stroke-width": 2 }));
    if (Object.keys(lines).length > 1) names.append(element("span", { class: `name-${i}` }, `${i ? "╌" : "—"} ${name} `));
  });
  return element("figure", { class: "chart" }, element("figcaption", {}, title), plot, names);
}

// ── the idea in one look: a thought of each side, with a bar from zero for each number of a step
function meter(value, values) {
  const low = -largestOf(values.map(v => -v), 0), size = largestOf(values, 0) - low || 1;
  const style = `--zero: ${-low / size}; --from: ${(Math.min(0, value) - low) / size}; --size: ${Math.abs(value) / size}; --shade: var(--${value < 0 ? "loss" : "gain"})`;
  return element("td", {}, nats(value), element("span", { class: "meter", style }, element("i")));
}

function idea({ question, columns, sides, about }) {
  const names = Object.keys(columns), all = sides.flatMap(side => side.steps);
  const row = step => element("tr", {}, element("td", {}, step.text), ...names.map(name => meter(step[name], all.map(one => one[name]))));
  const head = element("tr", {}, ...["step", ...Object.values(columns)].map(title => element("th", {}, title)));
  const drawn = sides.map(side => element("section", {}, element("h2", {}, `${side.title}: ${counted(side.tokens, "token")}`),
    element("table", {}, element("thead", {}, head.cloneNode(true)), element("tbody", {}, ...side.steps.map(row)))));
  const [result, ...meanings] = about;
  return element("div", { class: "panel idea", style: `--count: ${sides.length}` }, element("p", {}, element("b", {}, question), ` ${result}`), ...drawn,
    ...meanings.map(text => element("p", { class: "dim" }, text)));
}

if (data.idea) {
  by("idea").replaceChildren(idea(data.idea));
  by("idea").hidden = false;
}
if (data.summary) {
  const { notes, tables, charts } = data.summary;
  const drawn = tables.map(one => element("div", { class: "tables" }, table(one)));
  by("summary").replaceChildren(element("div", { class: "panel summary" }, ...drawn, ...charts.map(chart),
    ...notes.map(note => element("p", { class: "dim" }, note))));
  by("summary").hidden = false;
}
by("title").textContent = document.title = data.title;
const benchmarks = [...new Set(data.problems.map(p => p.benchmark))];
for (const name of ["all", ...benchmarks]) by("benchmark").append(option(name, name || "unnamed"));
by("benchmark").parentElement.hidden = benchmarks.length < 2;
for (const name of Object.keys(FILTERS)) by("show").append(option(name, name));

// ── user input
const refresh = () => show(position);
const walk = steps => {
  const cards = [...document.querySelectorAll(".step .text")], now = cards.indexOf(document.activeElement);
  cards[Math.min(cards.length - 1, Math.max(0, now + steps))]?.focus();
};
const KEYS = {
  ArrowLeft: () => position > 0 && show(position - 1),
  ArrowRight: () => position < shown.length - 1 && show(position + 1),
  j: () => walk(1),
  k: () => walk(-1),
  f: () => by("show").focus(),
  s: () => { by("scale").selectedIndex = (by("scale").selectedIndex + 1) % by("scale").length; refresh(); },
  m: () => { by("formulas").checked = !by("formulas").checked; refresh(); },
  "?": () => by("helped").showModal(),
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || by("helped").open) return;
  if (event.target.matches("select, input")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});
for (const id of ["benchmark", "show", "longer"]) by(id).addEventListener("change", filter);
for (const id of ["scale", "formulas"]) by(id).addEventListener("change", refresh);
by("choice").addEventListener("change", () => show(Number(by("choice").value)));
by("previous").addEventListener("click", KEYS.ArrowLeft);
by("next").addEventListener("click", KEYS.ArrowRight);
by("help").addEventListener("click", KEYS["?"]);
filter();
