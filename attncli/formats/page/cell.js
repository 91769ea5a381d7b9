// One cell in words, its row as a table, and its q × k.

const MOST_KEYS = 100;  // of a row in the table

function cellInWords(view, row, column) {
  const code = view.code(row, column);
  if (view.isAllowed(row, column)) return written(code);
  return code === 0 ? "masked" : `masked, ${written(code)}`;  // a row without any key has weights nevertheless
}

const named = (view, token) => `${token.index} ${token.label}${view.hasPair ? ` (${"AB"[token.segment] ?? token.segment})` : ""}`;

function showCell(view, row, column) {
  const [query, key] = [view.rows[row], view.columns[column]].map((token) => labelled("bdi", named(view, token)));
  const value = labelled("b", cellInWords(view, row, column));
  value.id = "cell-value";
  element("cell").replaceChildren("query ", query, " → key ", key, ": ", value);
  element("map").setAttribute("aria-label", `heat map of ${headInWords(view)}; ${spokenCell(view, row, column)}`);
}

function headInWords(view) {
  const hasKinds = new Set(page.layers.map((layer) => layer.kind)).size > 1;
  return `layer ${view.layer.layer}${hasKinds ? ` (${view.layer.kind})` : ""}, head ${view.head}`;
}

const spokenCell = (view, row, column) =>
  `query ${named(view, view.rows[row])}, key ${named(view, view.columns[column])}: ${cellInWords(view, row, column)}`;

// The keys of one query, the largest weight first, and those that are no number before all.
function showRow(view, row, column) {
  const keys = [...range(view.columns.length)].filter((key) => view.isChosen(row, key));
  keys.sort((one, other) => view.seen(row, other) - view.seen(row, one) || one - other);
  element("row").replaceChildren(...keys.slice(0, MOST_KEYS).map((key) => {
    const line = document.createElement("tr");
    const index = labelled("th", view.columns[key].index), weight = labelled("td", cellInWords(view, row, key));
    index.scope = "row";
    const code = view.seen(row, key);
    if (isNumber(code)) weight.style.setProperty("--share", Math.max(0, Math.min(1, code / UNIT)));
    const token = labelled("td", view.columns[key].label);
    token.className = "token";
    line.append(index, token, weight);
    if (key === column) line.setAttribute("aria-current", "true");
    return line;
  }));
  const more = keys.length > MOST_KEYS ? `, the ${MOST_KEYS} heaviest of ${keys.length}` : "";
  element("row-title").textContent = `Keys of query ${named(view, view.rows[row])}${more}`;
}

let productsAsked = 0;

// q × k of a cell, if the page holds q and k; the sum is that of the float16 numbers shown.
async function showProducts(view, row, column) {
  const query = element(`query-${view.place}-${view.head}`);
  element("products").hidden = !query;
  if (!query) return;
  const asked = ++productsAsked;
  const [q, k] = await Promise.all([halvesOf(query.id), halvesOf(view.key)]);
  if (asked !== productsAsked) return;
  const width = q.length / view.rows.length;
  const products = Array.from(range(width), (d) => q[row * width + d] * k[column * width + d]);
  drawProducts(products);
  const total = products.reduce((sum, product) => sum + product, 0);
  const ranked = [...products.keys()].sort((one, other) => Math.abs(products[other]) - Math.abs(products[one]));
  const largest = ranked.slice(0, 5).map((d) => `${d}: ${signed(products[d])}`).join(", ");
  const { scale, has_bias: hasBias, softcap } = view.layer;
  const more = [hasBias && "bias", softcap !== null && "softcap"].filter(Boolean).join(" and ");
  const scaled = scale === null ? "" : ` × scale ${scale.toPrecision(4)} = ${signed(total * scale)}${more && `, before ${more}`}`;
  element("products-text").textContent = `q·k = ${signed(total)} from float16${scaled}. Largest dimensions: ${largest}`;
}

const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(3);

function drawProducts(products) {
  const bar = Math.max(2, Math.min(16, Math.floor(600 / products.length))), half = 45;
  const context = sized(element("products-bars"), bar * products.length, 2 * half + 14);
  const most = Math.max(...products.map(Math.abs).filter(Number.isFinite), 1e-12);
  products.forEach((product, d) => {
    const height = Number.isFinite(product) ? (product / most) * half : half * (product < 0 ? -1 : 1);
    context.fillStyle = themed(!Number.isFinite(product) ? "--ink" : product < 0 ? "--dim" : "--accent");
    context.fillRect(d * bar, half - Math.max(height, 0), Math.max(1, bar - 1), Math.max(1, Math.abs(height)));
  });
  context.fillStyle = themed("--rule");
  context.fillRect(0, half, bar * products.length, 1);
  context.fillStyle = themed("--dim");
  context.font = `10${LABEL_FONT}`;
  context.textBaseline = "bottom";
  for (let d = 0; d < products.length; d += Math.ceil(products.length / 8)) context.fillText(d, d * bar, 2 * half + 14);
}
