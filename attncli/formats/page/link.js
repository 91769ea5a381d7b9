// A link that opens the page at this head and cell: the fragment of its address, as `#layer=2&head=5&query=4&key=1`.

const LINK_DELAY = 300;  // milliseconds: browsers slow down an address that changes with every move of the pointer
let linking = 0;

// The choices that a fragment names. Tokens are named by their indices; what the page does not hold is left alone.
function linked(fragment) {
  const named = new URLSearchParams(fragment.slice(1));
  const is = (value, name) => String(value) === named.get(name);
  const place = page.layers.findIndex((layer) => is(layer.layer, "layer") && (!named.has("kind") || is(layer.kind, "kind")));
  if (place < 0) return {};
  const layer = page.layers[place];
  const head = layer.heads.find((each) => is(each, "head"));
  const at = (sequence, name) => page.sequences[sequence].findIndex((token) => is(token.index, name));
  const found = { place, head, row: at(layer.rows, "query"), column: at(layer.columns, "key") };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined && value >= 0));
}

function fragmentOf(view, row, column) {
  const named = new URLSearchParams({ layer: view.layer.layer, head: view.head });
  if (new Set(page.layers.map((layer) => layer.kind)).size > 1) named.set("kind", view.layer.kind);
  named.set("query", view.rows[row].index);
  named.set("key", view.columns[column].index);
  return `#${named}`;
}

// Puts a cell into the address, soon.
function showLink(view, row, column) {
  clearTimeout(linking);
  linking = setTimeout(() => history.replaceState(null, "", fragmentOf(view, row, column)), LINK_DELAY);
}
