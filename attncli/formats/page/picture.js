// Where the query looks: pictures under the weights of their cells, as render/picture.py has them, and on a click the
// weights of a cell itself. Words that attend to the key stand beside.

const DIMMED = 0.5, DARK = 0.15, COVER = 0.85;  // of the light where nothing is looked at, of what is no key; the heaviest cell
const PANEL = 400;  // pixels of the longer side
const OWN = "#ff2d95";  // the colour of the frame of the query's own cell
const SMALL = 96;  // and of a thumbnail
const shades = [];  // of each picture: as it is, dimmed and dark

// What is drawn by itself, with its cells: their positions and where they lie.
const panels = page.canvases.map((canvas) => ({
  ...canvas,
  cells: canvas.grids.flatMap(({ box: [left, top, right, bottom], rows, columns, positions, queries }) => {
    const wide = (right - left) / columns, high = (bottom - top) / rows;
    return positions.map((position, at) => {
      const x = left + (at % columns) * wide, y = top + Math.floor(at / columns) * high;
      return { position, queries, box: [x, y, x + wide, y + high] };
    });
  }),
}));
const cellPositions = new Set(panels.flatMap(({ cells }) => cells.map(({ position }) => position)));

const looks = (view) => panels.length > 0 && view.layer.kind === "self";
const isCell = (view, token) => looks(view) && cellPositions.has(token.index);
const placesOfTokens = (tokens) => new Map(tokens.map((token, place) => [token.index, place]));

async function readPicture({ pixels: [width, height] }, number) {
  const bytes = await unpacked(`picture-${number}`), stride = 3 * width;
  for (let at = stride; at < bytes.length; at++) bytes[at] += bytes[at - stride];
  const color = (y, x) => bytes.subarray(y * stride + 3 * x, y * stride + 3 * x + 3);
  const gray = (share) => (y, x) => {
    const [red, green, blue] = color(y, x);
    return Array(3).fill(Math.round((0.2126 * red + 0.7152 * green + 0.0722 * blue) * share));
  };
  return [color, gray(DIMMED), gray(DARK)].map((colorAt) => picture(width, height, colorAt));
}

// `state` is a function of what is looked at; `move` takes a row and a column, of which the row may be null: as it was.
async function buildPictures(state, move) {
  if (!panels.length) return;
  shades.push(...await Promise.all(page.pictures.map(readPicture)));
  const plain = page.pictures.map(({ name, pixels }, number) => {
    const canvas = document.createElement("canvas"), [width, height] = fitted(pixels, PANEL);
    paintShade(sized(canvas, width, height), shades[number][0], width, height);
    return figureOf(name, canvas);
  });
  const covered = panels.map((panel, number) => {
    panel.canvas = document.createElement("canvas");
    const made = figureOf("", panel.canvas);
    panel.caption = made.lastChild;
    made.dataset.panel = number;
    return made;
  });
  element("picture").replaceChildren(...plain, ...covered);
  element("sentence").append(element("heads-section"));
  element("heads-help").textContent = "The picture under the weights that the query has in each head, on one scale. Arrow keys move.";
  listenToPicture(state, move);
}

function figureOf(caption, drawn) {
  const made = document.createElement("figure");
  made.append(drawn, labelled("figcaption", caption));
  return made;
}

// As large as a side allows.
function fitted([width, height], side) {
  const share = side / Math.max(width, height);
  return [Math.max(1, Math.round(width * share)), Math.max(1, Math.round(height * share))];
}

function paintShade(context, shade, width, height) {
  context.imageSmoothingEnabled = width < 3 * shade.width;  // else its pixels are to be seen
  context.drawImage(shade, 0, 0, width, height);
}

// Draws a picture under the codes of its cells: what is no key, or masked, stays dark.
function paintLook(context, panel, codes, view, top, width, height) {
  const color = painter(view.colormap, view.ramp, top), [all, down] = [width / panel.size[0], height / panel.size[1]];
  const shade = panel.picture === null ? null : shades[panel.picture];
  const lit = panel.cells.map(({ box }, at) => ({ code: codes[at], box: scaled(box, all, down) })).filter(({ code }) => code !== MASKED);
  const bare = new Path2D();
  for (const { box: [left, up, right, low] } of lit) bare.rect(left, up, right - left, low - up);
  context.save();
  context.beginPath();
  context.rect(0, 0, width, height);
  context.clip();
  context.fillStyle = themed("--masked");
  context.fillRect(0, 0, width, height);
  if (shade) paintShade(context, shade[2], width, height);
  context.clip(bare);
  if (shade) paintShade(context, shade[1], width, height);
  for (const { code, box: [left, up, right, low] } of lit) {
    context.globalAlpha = shade && isNumber(code) ? COVER * placed(code, view.ramp, top) : 1;
    context.fillStyle = `rgb(${color(code).join(" ")})`;
    context.fillRect(left, up, right - left, low - up);
  }
  context.restore();
}

// A box on whole pixels, so that no seams stand between neighbours.
const scaled = ([left, top, right, bottom], across, down) =>
  [left * across, top * down, right * across, bottom * down].map(Math.round);

// The codes of the cells of each panel, in one row of a head.
function lookOf(head, row) {
  const places = placesOfTokens(head.columns);
  return panels.map(({ cells }) => cells.map(({ position }) => (places.has(position) ? head.seen(row, places.get(position)) : MASKED)));
}

// The largest weight that is given to a cell, where the colours end.
const topOf = (look) => look.flat().reduce((top, code) => (isNumber(code) ? Math.max(top, code) : top), 1);

// The first picture as a thumbnail.
function drawSmallLook(canvas, [codes], view, top) {
  [canvas.width, canvas.height] = fitted(panels[0].size, SMALL);
  paintLook(canvas.getContext("2d"), panels[0], codes, view, top, canvas.width, canvas.height);
}

function showPicture(view, row, column) {
  element("picture-section").hidden = !looks(view);
  if (!looks(view)) return;
  const look = lookOf(view, row), top = topOf(look);
  panels.forEach((panel, at) => {
    const [width, height] = fitted(panel.size, PANEL);
    const context = sized(panel.canvas, width, height);
    paintLook(context, panel, look[at], view, top, width, height);
    mark(context, panel, themed("--accent"), view.columns[column], () => true);
    mark(context, panel, OWN, view.rows[row], (cell) => cell.queries);
    const sum = look[at].reduce((total, code) => (isNumber(code) ? total + code : total), 0);
    panel.caption.textContent = `${panel.overview ? "overview: " : ""}${Math.round((100 * sum) / UNIT)} % of the query's weight`;
  });
  const facts = [`weights, ${view.ramp} scale`, ...page.facts].map((fact) => labelled("span", fact));
  if (isCell(view, view.rows[row])) facts.splice(1, 0, swatch(channels(OWN), "", "the query's own cell"));
  element("picture-legend").replaceChildren(scaleBar(view, top), ...facts);
  element("picture-text").replaceChildren(...element("cell").cloneNode(true).childNodes);
  element("picture-text").lastChild.removeAttribute("id");
  colorAttending(view, row, column, painter(view.colormap, view.ramp, top));
}

// Draws a frame around the cell of a token.
function mark(context, panel, color, token, isIts) {
  const cell = panel.cells.find((each) => each.position === token.index && isIts(each));
  if (!cell) return;
  const [width, height] = fitted(panel.size, PANEL);
  const [left, top, right, bottom] = scaled(cell.box, width / panel.size[0], height / panel.size[1]);
  Object.assign(context, { strokeStyle: color, lineWidth: 2 });
  context.strokeRect(left + 1, top + 1, right - left - 2, bottom - top - 2);
}

// The last of the cells at a point is the one that is drawn.
const cellOf = (panel, x, y) =>
  panel.cells.findLast(({ box: [left, top, right, bottom] }) => left <= x && x < right && top <= y && y < bottom);

function listenToPicture(state, move) {
  const root = element("picture");
  const pointed = (event) => {
    const figure = event.target.closest("[data-panel]");
    if (!figure) return undefined;
    const panel = panels[figure.dataset.panel], box = panel.canvas.getBoundingClientRect();
    return cellOf(panel, ((event.clientX - box.left) / box.width) * panel.size[0],
      ((event.clientY - box.top) / box.height) * panel.size[1]);
  };
  // A cell is the key, and where it is to look, the query too.
  const go = (cell, isQuery, isSpoken) => {
    const { view } = state();
    const column = cell && placesOfTokens(view.columns).get(cell.position);
    if (column === undefined) return;
    const row = isQuery && cell.queries ? placesOfTokens(view.rows).get(cell.position) : undefined;
    move(row ?? null, column, isSpoken);
  };
  root.addEventListener("pointermove", (event) => go(pointed(event), false, false));
  root.addEventListener("click", (event) => go(pointed(event), true, false));
}
