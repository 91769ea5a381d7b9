// The map of one head: cells, axes, legend, and the cursor on the cell that is looked at.

const LABEL_FONT = "px system-ui, sans-serif", LONGEST_LABEL = 120;
const geometry = { size: 0, left: 0, top: 0, rows: 0, columns: 0 };

const longest = (view) => Math.max(view.rows.length, view.columns.length);

// The size at which a whole map is as wide as there is room for, and no higher than most of the window.
function fittingSize(view) {
  const most = Math.max(600, window.innerHeight - 320);
  const room = Math.min(most, element("map-scroll").clientWidth - margin(view.rows, `12${LABEL_FONT}`));
  return Math.max(longest(view) > 2000 ? 1 : 2, Math.min(44, Math.floor(room / longest(view))));
}
// The largest one.
const largestSize = (view) => Math.max(2, Math.min(48, Math.floor(5600 / longest(view))));

function drawMap(view) {
  const size = view.size, rows = view.rows.length, columns = view.columns.length;
  const font = `${Math.max(9, Math.min(12, size - 1))}${LABEL_FONT}`;
  const left = margin(view.rows, font), top = margin(view.columns, font);
  Object.assign(geometry, { size, left, top, rows, columns });
  const context = sized(element("map-cells"), left + columns * size, top + rows * size);
  const color = view.part === "mask" ? maskPainter() : painter(view.colormap, view.ramp);
  const at = view.part === "mask" ? (row, column) => (view.isAllowed(row, column) ? 1 : MASKED) : view.seen;
  const seen = faded(view, (row, column) => color(at(row, column)));
  context.imageSmoothingEnabled = false;
  context.drawImage(picture(columns, rows, seen), left, top, columns * size, rows * size);
  drawGrid(context);
  drawGlyphs(context, view, at, color);
  drawLabels(context, view, font);
  drawLegend(view, color, at);
}

// What the choice of sentences leaves out is still there, faintly.
function faded(view, colorAt) {
  if (view.sentences === "all") return colorAt;
  return (row, column) => (view.isChosen(row, column) ? colorAt(row, column) : faint(colorAt(row, column)));
}

const maskPainter = () => (code) => channels(themed(code === MASKED ? "--masked" : "--ink"));

function margin(tokens, font) {
  const context = element("map-cells").getContext("2d");
  context.font = font;
  return Math.ceil(Math.min(LONGEST_LABEL, Math.max(...tokens.map((token) => context.measureText(token.label).width)))) + 22;
}

function drawGrid(context) {
  const { size, left, top, rows, columns } = geometry;
  if (size < 6) return;
  context.fillStyle = themed("--paper");
  for (const row of range(rows + 1)) context.fillRect(left, top + row * size - 0.5, columns * size, 1);
  for (const column of range(columns + 1)) context.fillRect(left + column * size - 0.5, top, 1, rows * size);
}

// Numbers where a cell has room for them, and the mark of what is no number.
function drawGlyphs(context, view, at, color) {
  const { size, left, top, rows, columns } = geometry;
  if (size < 8) return;
  const hasDigits = size >= 40 && view.part === "weights", dim = themed("--dim");
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const row of range(rows)) {
    for (const column of range(columns)) {
      const code = at(row, column), mark = MARKS.get(code);
      if (!mark && !hasDigits) continue;
      context.font = `${mark ? Math.min(size - 2, 16) : 12}${LABEL_FONT}`;
      context.globalAlpha = view.isChosen(row, column) ? 1 : 0.2;
      context.fillStyle = code === MASKED ? dim : inkOn(color(code));
      context.fillText(mark ? mark.glyph : written(code), left + (column + 0.5) * size, top + (row + 0.5) * size + 0.5);
    }
  }
  context.globalAlpha = 1;
}

function drawLabels(context, view, font) {
  const { size, left, top } = geometry;
  const step = Math.ceil(12 / size);  // where labels would stand on each other, only some of them
  context.font = font;
  const inks = [themed("--ink"), themed("--accent")];  // of the first and of the second text
  context.textBaseline = "middle";
  context.textAlign = "right";
  view.rows.forEach((token, row) => {
    if (row % step) return;
    context.fillStyle = inks[token.segment] ?? inks[0];
    const mark = view.blind.has(row) ? " !" : "";
    context.fillText(token.label + mark, left - 5, top + (row + 0.5) * size, LONGEST_LABEL);
  });
  context.textAlign = "left";
  view.columns.forEach((token, column) => {
    if (column % step) return;
    context.fillStyle = inks[token.segment] ?? inks[0];
    context.save();
    context.translate(left + (column + 0.5) * size, top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(token.label, 0, 0, LONGEST_LABEL);
    context.restore();
  });
}

function drawLegend(view, color, at) {
  const parts = [];
  const found = new Set();
  for (const row of range(view.rows.length)) {
    for (const column of range(view.columns.length)) if (MARKS.has(at(row, column))) found.add(at(row, column));
  }
  if (view.part === "mask") {
    parts.push(swatch(color(1), "", "attends"));
  } else {
    parts.push(scaleBar(view), labelled("span", `weights, ${view.ramp} scale`));
  }
  for (const [code, mark] of MARKS) if (found.has(code)) parts.push(swatch(color(code), mark.glyph, mark.name));
  if (view.blind.size) parts.push(labelled("span", `! fully masked: ${view.blind.size} of ${view.rows.length} queries`));
  parts.push(labelled("span", `mask ${view.layer.mask}`));
  element("legend").replaceChildren(...parts);
}

// The colours, and under them the weights that they begin with: round ones, or where a picture has its own end, that.
function scaleBar(view, top = UNIT) {
  const bar = document.createElement("canvas"), context = sized(bar, 256, 28);
  page.colormaps[view.colormap].forEach((color, x) => {
    context.fillStyle = `rgb(${color.join(" ")})`;
    context.fillRect(x, 0, 1, 12);
  });
  context.font = `11${LABEL_FONT}`;
  context.fillStyle = themed("--ink");
  for (const [share, text] of top === UNIT ? page.ticks[view.ramp] : [[0, "0"], [1, written(top)]]) {
    context.textAlign = share < 0.05 ? "left" : share > 0.95 ? "right" : "center";
    context.fillRect(Math.min(255, share * 256), 12, 1, 3);
    context.fillText(text, share * 256, 26);
  }
  const span = document.createElement("span");
  span.append(bar);
  return span;
}

function swatch(color, glyph, name) {
  const box = document.createElement("canvas");
  const context = sized(box, 14, 14);
  context.fillStyle = `rgb(${color.join(" ")})`;
  context.fillRect(0, 0, 14, 14);
  context.fillStyle = inkOn(color);
  context.font = `12${LABEL_FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(glyph, 7, 7.5);
  const span = document.createElement("span");
  span.append(box, ` ${name}`);
  return span;
}

function labelled(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

// Puts the cursor on a cell.
function markCell(view, row, column) {
  const { size, left, top, rows, columns } = geometry;
  const y = top + row * size, x = left + column * size;
  place("map-cursor", x, y, size, size);
  place("map-row", left, y, columns * size, size);
  place("map-column", x, top, size, rows * size);
  place("map-row-name", left - 2, y + size / 2);
  place("map-column-name", x + size / 2, top - 2);
  element("map-row-name").textContent = view.rows[row].label;
  element("map-column-name").textContent = view.columns[column].label;
}

function place(id, x, y, width, height) {
  const [left, top] = [`${x}px`, `${y}px`];
  Object.assign(element(id).style, width === undefined ? { left, top } : { left, top, width: `${width}px`, height: `${height}px` });
}

// The cell under a point of the window, or null.
function cellAt(clientX, clientY) {
  const box = element("map").getBoundingClientRect();
  const column = Math.floor((clientX - box.left - geometry.left) / geometry.size);
  const row = Math.floor((clientY - box.top - geometry.top) / geometry.size);
  return row >= 0 && row < geometry.rows && column >= 0 && column < geometry.columns ? [row, column] : null;
}
