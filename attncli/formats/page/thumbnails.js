// All heads of all layers of one kind, small. A picture keeps the largest of the cells that share one of its pixels.

const THUMB_PIXELS = 64;
const AT_ONCE = 12;  // pictures between two frames
const pooled = new Map();  // small pictures by "place-head"

async function smallOf(place, head) {
  const id = `${place}-${head}`;
  if (!pooled.has(id)) pooled.set(id, pool(await readHead(place, head)));
  return pooled.get(id);
}

function pool(head) {
  const rows = Math.min(head.rows.length, THUMB_PIXELS), columns = Math.min(head.columns.length, THUMB_PIXELS);
  const codes = new Int16Array(rows * columns).fill(MASKED);
  for (const row of range(head.rows.length)) {
    const y = Math.floor((row * rows) / head.rows.length);
    for (const column of range(head.columns.length)) {
      const at = y * columns + Math.floor((column * columns) / head.columns.length);
      const code = head.seen(row, column);
      if (rank(code) > rank(codes[at])) codes[at] = code;
    }
  }
  return { rows, columns, codes };
}

// What is odd must not get lost among numbers, nor a number among masked cells.
const rank = (code) => (code === MASKED ? -Infinity : isNumber(code) ? code : 1e6 + code);

// Lays the grid out for one kind; the pictures follow as they are read.
function buildThumbnails(kind) {
  const places = [...page.layers.keys()].filter((place) => page.layers[place].kind === kind);
  const heads = [...new Set(places.flatMap((place) => page.layers[place].heads))];
  const grid = element("heads");
  grid.style.gridTemplateColumns = `auto repeat(${heads.length}, auto)`;
  grid.style.setProperty("--thumb", `${heads.length <= 4 ? 96 : heads.length <= 16 ? 46 : 30}px`);
  grid.dataset.looks = looks({ layer: { kind } });
  const cells = ["", ...heads].map((head) => labelled("span", head));
  for (const place of places) {
    cells.push(labelled("span", page.layers[place].layer));
    cells.at(-1).style.gridColumn = 1;
    for (const head of page.layers[place].heads) {
      const button = thumbnail(place, head);
      button.style.gridColumn = 2 + heads.indexOf(head);
      cells.push(button);
    }
  }
  for (const label of cells.filter((cell) => cell.localName === "span")) label.setAttribute("aria-hidden", "true");
  grid.replaceChildren(...cells);
  element("heads-section").hidden = places.length * heads.length < 2;
}

function thumbnail(place, head) {
  const label = page.layers[place].labels[head] ?? "", choice = document.createElement("label"), input = document.createElement("input");
  choice.title = `layer ${page.layers[place].layer}, head ${head}${label && `, ${label}`}`;
  Object.assign(input, { type: "radio", name: "shown", value: `${place}-${head}`, className: "unseen", ariaLabel: choice.title });
  Object.assign(choice.dataset, { place, head });
  choice.append(input, document.createElement("canvas"), labelled("span", label));
  return choice;
}

let drawnThumbnails = 0, drawnRow = null, waiting = 0;

// Draws every picture, a few at a time so that the page stays quick; a later call overtakes an earlier one.
async function drawThumbnails(view, row) {
  const turn = ++drawnThumbnails;
  drawnRow = row;
  const buttons = [...element("heads").querySelectorAll("[data-head]")], found = [];
  for (let first = 0; first < buttons.length; first += AT_ONCE) {
    const some = buttons.slice(first, first + AT_ONCE).map(({ dataset }) => [Number(dataset.place), Number(dataset.head)]);
    const pictures = await Promise.all(some.map(async (head) => (looks(view) ? lookOf(await readHead(...head), row) : smallOf(...head))));
    if (turn !== drawnThumbnails) return;
    if (looks(view)) found.push(...pictures);
    else pictures.forEach((small, index) => drawThumbnail(buttons[first + index].children[1], small, view));
    await new Promise(requestAnimationFrame);
  }
  const top = topOf(found.flat());
  found.forEach((look, index) => drawSmallLook(buttons[index].children[1], look, view, top));
  element("heads").dataset.drawn = row;
}

// Pictures show one query, which may have changed; not every one that a pointer passes.
function drawThumbnailsSoon(view, row) {
  clearTimeout(waiting);
  if (looks(view)) waiting = setTimeout(() => row !== drawnRow && drawThumbnails(view, row), 150);
}

function drawThumbnail(canvas, small, view) {
  const color = painter(view.colormap, view.ramp);
  canvas.width = small.columns;
  canvas.height = small.rows;
  const drawn = picture(small.columns, small.rows, (row, column) => color(small.codes[row * small.columns + column]));
  canvas.getContext("2d").drawImage(drawn, 0, 0);
}

function checkThumbnail(place, head) {
  const input = document.querySelector(`input[value="${place}-${head}"]`);
  if (input) input.checked = true;
}

// `choose` takes the place of a layer and a head.
function listenToThumbnails(choose) {
  element("heads").addEventListener("change", (event) => choose(...event.target.value.split("-").map(Number)));
}
