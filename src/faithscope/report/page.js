"use strict";

// ---------------------------------------------------------------- tables
// Click a heading to sort: best first, then the other way round; empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    const isText = heading.dataset.kind === "text";
    button.addEventListener("click", () => {
      const first = heading.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value;
      const compare = (a, b) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (isText ? a.localeCompare(b) : a - b);
      };
      body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
    });
  });
}

// ---------------------------------------------------------------- what is wider than the page
// A hint stands above a table or picture only as long as a part of it is out of sight.
const widths = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const fits = target.scrollWidth <= target.clientWidth + 1;
    target.previousElementSibling.classList.toggle("fits", fits);
    target.previousElementSibling.classList.toggle("wide", !fits);
  }
});
document.querySelectorAll(".hint + .scroll").forEach((box) => widths.observe(box));

// ---------------------------------------------------------------- several runs in one page
const picker = document.querySelector("#run-picker");
if (picker) {
  const runs = [...document.querySelectorAll("article.run")];
  const show = (id) => {
    runs.forEach((run) => { run.hidden = run.id !== id; });
    picker.value = id;
    wakeLater();
  };
  picker.addEventListener("change", () => show(picker.value));
  for (const link of document.querySelectorAll("a.to-run")) {
    link.addEventListener("click", () => show(link.hash.slice(1)));
  }
  show(runs.some((run) => `#${run.id}` === location.hash) ? location.hash.slice(1) : runs[0].id);
}

// ---------------------------------------------------------------- several texts of a run
for (const choice of document.querySelectorAll(".text-picker")) {
  const texts = [...choice.closest("section").querySelectorAll(".sample")];
  const show = () => texts.forEach((text, place) => { text.hidden = place !== +choice.value; });
  choice.addEventListener("change", show);
  show();
}

// ---------------------------------------------------------------- small helpers
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};
const drawn = (name, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
const number = (value, digits = 3) =>
  value === null || value === undefined ? "—" : fixed(value, digits);
const breakable = (name) => name.replace(/[_:]/g, "$&\u200b");
const percent = (value) => {
  if (value === null) return "—";
  const digits = Math.abs(value) < 0.1 || (value > 0.995 && value < 1) ? 1 : 0;
  return `${fixed(100 * value, digits)}\u00a0%`;
};
const mean = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

// ---------------------------------------------------------------- pictures
const SIDE = 160;
const colours = {};
for (const kind of ["plain", "signed"]) {
  colours[kind] = bytes(document.documentElement.dataset[kind] || "");
}

const decode = async (sample) => {
  if (sample.words) return null;
  const image = new Image();
  image.src = sample.image;
  await image.decode();
  return image;
};

const paint = (canvas, image, map) => {
  const scale = SIDE / Math.max(image.naturalWidth, image.naturalHeight);
  canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = Math.max(image.naturalWidth, image.naturalHeight) > 64;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  if (map) overlay(context, canvas.width, canvas.height, map);
};

// The map over the greyed image, the more opaque the stronger: as the figures of the tool do it.
const overlay = (context, width, height, [kind, rows, columns, text]) => {
  const table = colours[kind];
  const values = bytes(text);
  const pixels = context.getImageData(0, 0, width, height);
  const data = pixels.data;
  for (let y = 0; y < height; y++) {
    const row = Math.floor((y * rows) / height) * columns;
    for (let x = 0; x < width; x++) {
      const at = 4 * (y * width + x);
      const grey = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
      const paper = 127.5 + 0.5 * grey;
      const value = values[row + Math.floor((x * columns) / width)];
      const strength = kind === "signed" ? Math.min(1, Math.abs(value - 128) / 127) : value / 255;
      const opacity = table ? 0.92 * strength ** 0.75 : 0;
      for (let c = 0; c < 3; c++) {
        data[at + c] = (1 - opacity) * paper + opacity * (table ? table[3 * value + c] : 0);
      }
    }
  }
  context.putImageData(pixels, 0, 0);
};

// ---------------------------------------------------------------- texts
// A word's place on the scale of its map: 0…1, or -1…1 on a signed one; null without a scale.
const shares = (map) => {
  if (!map || !colours[map[0]]) return null;
  const signed = map[0] === "signed";
  return [...bytes(map[3])].map((value) => (signed ? (value - 128) / 127 : value / 255));
};

// A text coloured by its map, with the classes that the page's other texts have.
const colouredText = (sample, map, steps, most) => {
  const line = element("p", { className: "text", dir: "auto" });
  const values = shares(map);
  const rest = (text) => line.append(element("span", { className: "rest", textContent: text }), " ");
  sample.words.slice(0, most).forEach((word, i) => {
    if (sample.second === i) rest("‖");
    const span = element("span", { className: "word", textContent: word });
    if (values) {
      span.classList.add(`${map[0]}-${Math.round(steps * values[i])}`);
      span.title = `salience ${number(values[i], 2)} on its scale`;
    }
    line.append(span, " ");
  });
  if (sample.words.length > most) rest(`… and ${(sample.words.length - most).toLocaleString("en")} more`);
  return line;
};

// ---------------------------------------------------------------- the gallery
const ITEMS = 20;
const TILES = 60;

const makeGallery = (root) => {
  const data = JSON.parse(root.querySelector("script").textContent);
  const field = (name) => root.querySelector(`[data-field="${name}"]`);
  const list = root.querySelector(".items");
  const ofTexts = data.sample === "text";
  list.classList.toggle("texts", ofTexts);
  const count = root.querySelector(".count");
  const more = root.querySelector(".more");
  const own = data.methods.map((_, m) => m).filter((m) => !data.random[m]);
  const explained = own.length ? own : data.methods.map((_, m) => m);
  let chosen = [];
  let drawnItems = 0;

  const className = (c) => data.classes[c] ?? (c < 0 ? "no class" : `class ${c}`);
  const caption = (sample) => {
    const said = `${className(sample.target)}, ${percent(sample.p)}`;
    return sample.label < 0 || sample.label === sample.target
      ? said : `${className(sample.label)} → ${said}`;
  };
  const methodsShown = () => {
    const value = field("method").value;
    return value === "all" ? data.methods.map((_, m) => m) : [Number(value)];
  };
  const scoreOf = (sample) => {
    const value = field("method").value;
    const metric = Number(field("metric").value);
    const which = value === "all" ? explained : [Number(value)];
    return mean(which.map((m) => sample.scores[m][metric]));
  };
  const spreadOf = (sample) => {
    const metric = Number(field("metric").value);
    const values = explained.map((m) => sample.scores[m][metric]).filter((v) => v !== null);
    return values.length > 1 ? Math.max(...values) - Math.min(...values) : null;
  };
  const flagsFor = (sample, m) =>
    Object.hasOwn(sample.flags, data.methods[m]) ? sample.flags[data.methods[m]] : [];
  const flagsOf = (sample) => Object.values(sample.flags).flat();

  const passes = (sample) => {
    const wanted = (name) => field(name)?.value ?? "any";
    if (wanted("class") !== "any" && sample.target !== Number(wanted("class"))) return false;
    const flag = wanted("flag");
    if (flag === "flagged" && !flagsOf(sample).length) return false;
    if (flag === "clean" && flagsOf(sample).length) return false;
    if (flag.startsWith("is:") && !flagsOf(sample).includes(flag.slice(3))) return false;
    const right = sample.predicted === sample.label;
    if (wanted("answer") === "right" && !(sample.label >= 0 && right)) return false;
    if (wanted("answer") === "wrong" && !(sample.label >= 0 && !right)) return false;
    const words = field("search").value.trim().toLowerCase();
    const said = [sample.id, caption(sample), ...(sample.words ?? [])].join(" ").replaceAll("\u00a0", " ");
    return !words || said.toLowerCase().includes(words);
  };
  const orders = {
    data: null,
    best: (sample) => scoreOf(sample),
    worst: (sample) => scoreOf(sample),
    disagreement: (sample) => sample.disagreement,
    spread: spreadOf,
    sure: (sample) => sample.p,
  };
  const sorted = (samples) => {
    const order = field("sort").value;
    const key = orders[order];
    if (!key) return samples;
    const up = data.metrics[Number(field("metric").value)].up;
    const rising = order === "sure" || (order === "best" && !up) || (order === "worst" && up);
    const keys = new Map(samples.map((sample) => [sample, key(sample)]));
    return [...samples].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return rising ? x - y : y - x;
    });
  };

  // The map of a method, or the sample itself: an image on a canvas, a text in words.
  const picture = (sample, image, map, label, most = Infinity) => {
    if (!image) return colouredText(sample, map, data.steps, most);
    const canvas = element("canvas", { role: "img" });
    canvas.setAttribute("aria-label", label);
    paint(canvas, image, map);
    return canvas;
  };

  const tile = (sample, m, image) => {
    const map = sample.maps[m];
    const shown = map || ofTexts
      ? picture(sample, image, map, `${data.methods[m]} of ${caption(sample)}`, data.most_words)
      : element("canvas", { role: "img", "aria-label": `${data.methods[m]} of ${caption(sample)}` });
    const metric = Number(field("metric").value);
    const flags = flagsFor(sample, m);
    const figcaption = element("figcaption", {},
      element("span", { className: "name", textContent: breakable(data.methods[m]) }),
      element("span", { textContent: number(sample.scores[m][metric], 2) }));
    const figure = element("figure", { className: "tile" }, ...(ofTexts ? [figcaption, shown] : [shown, figcaption]));
    if (map && (map[0] === "constant" || map[0] === "nan")) {
      const said = flags.join(", ") || (map[0] === "nan" ? "nan_map" : "degenerate");
      figure.append(element("span", { className: "badge", textContent: said }));
    } else if (flags.length) {
      figure.append(element("span", { className: "badge", textContent: flags.join(", ") }));
    }
    return figure;
  };

  const item = (sample, position) => {
    const open = element("button", { type: "button", className: "open", title: "Tell its story" },
      element("span", { className: "caption", textContent: caption(sample) }),
      element("span", { className: "id", textContent: sample.id }));
    open.addEventListener("click", () => story(position));
    const tiles = element("div", { className: "tiles" });
    decode(sample).then((image) => {
      if (image) open.prepend(picture(sample, image, null, caption(sample)));
      tiles.replaceChildren(...methodsShown().map((m) => tile(sample, m, image)));
    });
    return element("li", { className: "item" }, open, tiles);
  };

  const drawMore = () => {
    const step = field("method").value === "all" ? ITEMS : TILES;
    const next = chosen.slice(drawnItems, drawnItems + step);
    list.append(...next.map((sample, i) => item(sample, drawnItems + i)));
    drawnItems += next.length;
    more.hidden = drawnItems >= chosen.length;
    more.textContent = `Show ${Math.min(step, chosen.length - drawnItems)} more`;
  };
  const update = () => {
    chosen = sorted(data.samples.filter(passes));
    list.classList.toggle("single", field("method").value !== "all" && !ofTexts);
    list.replaceChildren();
    drawnItems = 0;
    const all = data.samples.length;
    const total = `${all.toLocaleString("en")} ${data.sample}${all === 1 ? "" : "s"}`;
    count.textContent = chosen.length === all
      ? total : `${chosen.length.toLocaleString("en")} of ${total}`;
    drawMore();
  };
  more.addEventListener("click", () => {
    const from = drawnItems;
    drawMore();
    list.children[from]?.querySelector("button").focus({ preventScroll: true });
  });
  root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  root.querySelector("form").addEventListener("input", update);
  root.querySelector("form").addEventListener("reset", () => setTimeout(update));

  // -------------------------------------------------------------- the story of one sample
  const dialog = root.querySelector("dialog");
  let position = 0;
  const story = async (at) => {
    position = at;
    const sample = chosen[at];
    const image = await decode(sample);
    if (sample !== chosen[position]) return;
    const said = sample.label >= 0 && sample.label !== sample.predicted
      ? `The model says ${className(sample.predicted)}, the label is ${className(sample.label)}.`
      : `The model says ${className(sample.predicted)}.`;
    dialog.querySelector(".head").replaceChildren(
      ...(image ? [picture(sample, image, null, caption(sample))] : []), element("div", {},
      element("h3", { textContent: caption(sample) }),
      element("p", { textContent: `sample ${sample.id} · ${at + 1} of ${chosen.length}` }),
      element("p", { textContent: sample.target === sample.predicted ? said
        : `${said} Explained is ${className(sample.target)}.` })));
    const shown = methodsShown();
    const groups = sample.groups[Math.max(0, data.sacos.indexOf(Number(field("metric").value)))] ?? [];
    const drops = shown.flatMap((m) => groups[m]?.drop ?? []);
    const scale = [Math.min(0, ...drops), Math.max(0, ...drops)];
    dialog.querySelector(".rows").replaceChildren(
      ...shown.map((m) => storyRow(sample, m, image, groups[m], scale)));
    const focused = document.activeElement; // some browsers take the focus off what is disabled
    dialog.querySelector(".previous").disabled = at === 0;
    dialog.querySelector(".next").disabled = at === chosen.length - 1;
    if (focused.disabled) dialog.querySelector("button:enabled").focus(); // for the keys
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const storyRow = (sample, m, image, groups, scale) => {
    const map = sample.maps[m];
    const shown = map || ofTexts ? picture(sample, image, map, `${data.methods[m]}'s map`)
      : element("canvas", { role: "img", "aria-label": `${data.methods[m]}'s map` });
    const scores = element("dl", { className: "scores" });
    data.metrics.forEach((metric, i) => scores.append(
      element("dt", { textContent: `${metric.name} ${metric.up ? "↑" : "↓"}` }),
      element("dd", { textContent: number(sample.scores[m][i]) })));
    const flags = flagsFor(sample, m);
    const name = element("h4", { textContent: data.methods[m] });
    if (flags.length) name.append(element("span", { className: "badge", textContent: flags.join(", ") }));
    const row = element("section", { className: ofTexts ? "method of-text" : "method" }, name, shown);
    if (data.random[m] && data.draws[m] > 1) {
      name.append(element("span", { className: "aside",
        textContent: `mean of ${data.draws[m]} draws; the map is the first` }));
    }
    if (groups) {
      const marked = data.random[m] ? [] : outOfOrder(groups.drop);
      row.append(
        bars(`salience of ${groups.salience.length} groups`, groups.salience,
          { write: (value) => number(value, 2) }),
        bars("drop when it alone is removed", groups.drop, { marked, scale, write: percent }));
    }
    if (sample.curves[m]) row.append(curve(sample.curves[m], sample.curves[data.matched[m]]));
    row.classList.toggle("random", data.random[m]);
    row.append(scores);
    return row;
  };
  // A group is out of order if some less salient group makes the confidence fall more.
  const outOfOrder = (drops) => drops.map((drop, i) => drops.slice(i + 1).some((d) => d > drop));

  root.querySelector(".close").addEventListener("click", () => dialog.close());
  root.querySelector(".previous").addEventListener("click", () => story(position - 1));
  root.querySelector(".next").addEventListener("click", () => story(position + 1));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" && position > 0) story(position - 1);
    if (event.key === "ArrowRight" && position < chosen.length - 1) story(position + 1);
  });
  dialog.addEventListener("close", () => {
    while (drawnItems <= position) drawMore();
    list.children[position]?.querySelector("button").focus();
  });
  update();
};

// ---------------------------------------------------------------- charts of the story
const WIDE = 170;
const HIGH = 92;

const chart = (title, described, ...children) => {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": described },
    ...children);
  return element("figure", { className: "chart" }, element("figcaption", { textContent: title }), svg);
};

const bars = (title, values, { marked = [], scale = null, write }) => {
  const known = values.map((value) => value ?? 0);
  const [bottom, top] = scale ?? [Math.min(0, ...known), Math.max(0, ...known)];
  const room = scale ? 12 : 4;
  const y = (value) => room + ((top - value) / (top - bottom || 1)) * (HIGH - 14 - room);
  const step = (WIDE - 4) / values.length;
  const children = known.map((value, i) => {
    const high = Math.max(0.75, Math.abs(y(value) - y(0)));
    const mark = marked[i] ? "bar out" : "bar";
    return drawn("rect", { class: mark, x: 2 + i * step, width: step * 0.78,
      y: value >= 0 ? y(0) - high : y(0), height: high },
    drawn("title", {}, `group ${i + 1}: ${write(known[i])}${marked[i] ? ", out of order" : ""}`));
  });
  children.push(drawn("line", { class: "axis", x1: 0, x2: WIDE, y1: y(0), y2: y(0) }));
  children.push(drawn("text", { x: 2, y: HIGH - 2 }, "most salient"));
  children.push(drawn("text", { x: WIDE - 2, y: HIGH - 2, "text-anchor": "end" }, "least"));
  const largest = known.indexOf(Math.max(...known));
  if (scale && known[largest] > 0) {
    children.push(drawn("text", { class: "value",
      x: Math.min(WIDE - 14, Math.max(14, 2 + (largest + 0.39) * step)),
      y: y(known[largest]) - 3, "text-anchor": "middle" }, write(known[largest])));
  }
  const said = known.map(write).join(", ");
  return chart(title, `${title}: ${said}`, ...children);
};

const curve = (values, reference) => {
  const x = (i, all) => 2 + (i / (all.length - 1)) * (WIDE - 4);
  const y = (value) => 12 + (1 - value) * (HIGH - 26);
  const points = (all) => all.map((value, i) => `${x(i, all).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const children = [
    drawn("line", { class: "axis", x1: 0, x2: WIDE, y1: y(0), y2: y(0) }),
    drawn("line", { class: "grid", x1: 0, x2: WIDE, y1: y(1), y2: y(1) }),
  ];
  if (reference) children.push(drawn("polyline", { class: "reference", points: points(reference) }));
  children.push(drawn("polyline", { class: "curve", points: points(values) }));
  children.push(drawn("text", { class: "value", x: 2, y: y(values[0]) - 4 }, percent(values[0])));
  children.push(drawn("text", { x: 2, y: HIGH - 2 }, "0 % removed"));
  children.push(drawn("text", { x: WIDE - 2, y: HIGH - 2, "text-anchor": "end" }, "100 %"));
  const said = values.map((value) => percent(value)).join(", ");
  return chart("confidence while groups go", `confidence while groups go: ${said}`, ...children);
};

// A gallery is read when it comes near, so that a page of a thousand images opens at once, or else a
// moment later, so that it is there in print.
const awake = new Set();
const wake = (root) => {
  if (awake.has(root) || root.closest("[hidden]")) return;
  awake.add(root);
  makeGallery(root);
};
function wakeLater() {
  setTimeout(() => document.querySelectorAll(".gallery").forEach(wake), 1000);
}
const near = new IntersectionObserver((entries) => {
  entries.filter((entry) => entry.isIntersecting).forEach((entry) => wake(entry.target));
}, { rootMargin: "800px" });
document.querySelectorAll(".gallery").forEach((root) => near.observe(root));
wakeLater();
