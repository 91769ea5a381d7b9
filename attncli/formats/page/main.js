// The choices of the reader, and what is drawn anew when one of them changes.

const state = { ...page.start, column: null, sentences: "all",
  ramp: page.ramp, colormap: page.colormap, part: "weights", size: 0 };
let view = null;  // the head that is shown, with the choices
let turn = 0;

const kinds = [...new Set(page.layers.map((layer) => layer.kind))];
const kind = () => page.layers[state.place].kind;
const placesOf = (wanted) => [...page.layers.keys()].filter((place) => page.layers[place].kind === wanted);

// Takes new choices and shows what they ask for; a later call overtakes an earlier one.
async function choose(changes) {
  const before = view;
  Object.assign(state, changes);
  if (!page.layers[state.place].heads.includes(state.head)) state.head = page.layers[state.place].heads[0];
  const asked = ++turn;
  element("map").ariaBusy = "true";
  const head = await headOf(`${state.place}-${state.head}`);
  if (asked !== turn) return;
  view = viewed(head);
  if (!before || before.layer.kind !== view.layer.kind) buildThumbnails(view.layer.kind);
  if (!before || before.rows !== view.rows || before.columns !== view.columns) arrange();
  view.size = state.size;
  showControls();
  element("proof").textContent = view.layer.proof;
  drawMap(view);
  checkThumbnail(state.place, state.head);
  moveTo(state.row, state.column ?? heaviest(view, state.row));
  element("map").ariaBusy = "false";
  if (!before || ["ramp", "colormap", "isDark"].some((name) => name in changes) || before.layer.kind !== view.layer.kind) {
    drawThumbnails(view, state.row);
  }
}

// A head with the choices that every drawing needs.
function viewed(head) {
  const { sentences, ramp, colormap, part } = state;
  const isPair = (tokens) => tokens.some((token) => token.segment === 1);
  const hasPair = isPair(head.rows) && isPair(head.columns);
  const isChosen = (row, column) =>
    sentences === "all" || !hasPair || `${head.rows[row].segment}${head.columns[column].segment}` === sentences;
  return { ...head, sentences: hasPair ? sentences : "all", ramp, colormap, part, hasPair, isChosen };
}

// Other tokens than before: their own columns, cell size and cursor.
function arrange() {
  buildSentence(view);
  state.size = fittingSize(view);
  state.row = Math.min(state.row, view.rows.length - 1);
  if (state.column !== null) state.column = Math.min(state.column, view.columns.length - 1);
}

// The key that a query gives most weight.
const heaviest = (view, row) =>
  [...range(view.columns.length)].reduce((best, key) => (view.seen(row, key) > view.seen(row, best) ? key : best), 0);

function moveTo(row, column, isSpoken = false) {
  Object.assign(state, { row, column });
  markCell(view, row, column);
  colorSentence(view, row, column);
  showCell(view, row, column);
  showPicture(view, row, column);
  drawThumbnailsSoon(view, row);
  showRow(view, row, column);
  showProducts(view, row, column);
  showLink(view, row, column);
  if (isSpoken) {
    follow();
    say(spokenCell(view, row, column));
  }
}

// A picture stands above the map and is not to scroll away.
function follow() {
  if (!looks(view) || document.activeElement === element("map")) element("map-cursor").scrollIntoView({ block: "nearest", inline: "nearest" });
}

const say = (text) => { element("spoken").textContent = text; };

// --- controls ---------------------------------------------------------------------------------------------

function options(id, values, names = values) {
  element(id).replaceChildren(...values.map((value, index) => {
    const option = labelled("option", names[index]);
    option.value = value;
    return option;
  }));
}

function showControls() {
  const places = placesOf(kind());
  options("layer", places, places.map((place) => page.layers[place].layer));
  options("head", view.layer.heads);
  const chosen = { kind: kind(), layer: state.place, head: state.head, sentences: view.sentences,
    ramp: state.ramp, colormap: state.colormap, part: state.part, size: state.size };
  element("size").max = largestSize(view);
  for (const [id, value] of Object.entries(chosen)) element(id).value = value;
  element("sentences-choice").hidden = !view.hasPair;
  element("kind-choice").hidden = kinds.length < 2;
}

function listenToControls() {
  options("kind", kinds);
  options("colormap", Object.keys(page.colormaps));
  options("ramp", Object.keys(page.ticks));
  options("sentences", ["all", "00", "01", "10", "11"], ["all", "A → A", "A → B", "B → A", "B → B"]);
  const listen = (id, change, event = "change") => element(id).addEventListener(event, () => choose(change(element(id).value)));
  listen("kind", (value) => ({ place: placesOf(value)[0] }));
  listen("layer", (value) => ({ place: Number(value) }));
  listen("head", (value) => ({ head: Number(value) }));
  for (const name of ["sentences", "ramp", "colormap", "part"]) listen(name, (value) => ({ [name]: value }));
  listen("size", (value) => ({ size: Number(value) }), "input");
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
}

// The next head, or layer of the same kind, in either direction.
function step(name, by) {
  const all = name === "head" ? view.layer.heads : placesOf(kind());
  const wanted = all[all.indexOf(state[name]) + by];
  if (wanted === undefined) return;
  choose({ [name]: wanted }).then(() => say(`${headInWords(view)}; ${spokenCell(view, state.row, state.column)}`));
}

function listenToMap() {
  const map = element("map");
  for (const name of ["pointermove", "pointerdown"]) {
    map.addEventListener(name, (event) => {
      const cell = cellAt(event.clientX, event.clientY);
      if (cell && (cell[0] !== state.row || cell[1] !== state.column)) moveTo(...cell);
    });
  }
  map.addEventListener("keydown", (event) => {
    const { row, column } = state, lastRow = view.rows.length - 1, lastColumn = view.columns.length - 1;
    const isFar = event.ctrlKey || event.metaKey;
    const cells = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      Home: [isFar ? 0 : row, isFar ? column : 0], End: [isFar ? lastRow : row, isFar ? column : lastColumn],
    };
    const pages = { PageUp: -1, PageDown: 1 };
    if (event.key in pages) step(event.shiftKey ? "place" : "head", pages[event.key]);
    else if (event.key in cells) {
      const [y, x] = cells[event.key];
      moveTo(Math.max(0, Math.min(lastRow, y)), Math.max(0, Math.min(lastColumn, x)), true);
    } else return;
    event.preventDefault();
  });
}

// --- start ------------------------------------------------------------------------------------------------

function showTexts() {
  element("title").textContent = page.title;
  const texts = [["text", page.text], ["pair", page.pair], ["target", page.target]].filter(([, text]) => text);
  element("texts").replaceChildren(...texts.flatMap(([name, text]) => [labelled("dt", name), labelled("dd", text)]));
}

showTexts();
listenToControls();
listenToMap();
listenToThumbnails((place, head) => choose({ place, head }));
listenToSentence((row, column, isSpoken) => moveTo(row ?? state.row, column ?? state.column, isSpoken));
await buildPictures(() => ({ view, column: state.column }), (row, column, isSpoken) => moveTo(row ?? state.row, column, isSpoken));
window.addEventListener("hashchange", () => choose(linked(location.hash)).then(follow));
Object.assign(state, linked(location.hash));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => choose({ isDark: event.matches }));
await choose({});
if (location.hash) follow();
