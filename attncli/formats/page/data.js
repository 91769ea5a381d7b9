// What the page holds, and how it is read: the counterpart of packing.py.

const page = JSON.parse(document.getElementById("document").textContent);

const UNIT = 10 ** page.decimals;  // which counts what a number's last decimal counts

// Cells that are no such count, by their codes. MASKED is the page's own: no weight is packed as it.
const MASKED = -32768, MARKS = new Map(page.odd.map((mark) => [mark.code, mark])).set(MASKED, { glyph: "·", name: "masked" });
const isNumber = (code) => !MARKS.has(code);

const element = (id) => document.getElementById(id);

// The bytes of a block: base64 of deflated bytes.
async function unpacked(id) {
  const text = atob(element(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const inflating = new DecompressionStream("deflate");
  const writer = inflating.writable.getWriter();
  writer.write(bytes);
  writer.close();
  return new Uint8Array(await new Response(inflating.readable).arrayBuffer());
}

// Keeps the last few results of a function of one text; a page of many heads is never expanded whole.
function remembered(make, most) {
  const kept = new Map();
  return (id) => {
    const found = kept.get(id) ?? make(id);
    kept.delete(id);
    kept.set(id, found);
    if (kept.size > most) kept.delete(kept.keys().next().value);
    return found;
  };
}

const maskOf = remembered(unpacked, 4);
const halvesOf = remembered(async (id) => Float64Array.from(new Uint16Array((await unpacked(id)).buffer), half), 8);
const headOf = remembered(async (id) => readHead(...id.split("-").map(Number)), 8);

// One head: its tokens, its codes row by row, and which cells it may attend to.
async function readHead(place, head) {
  const layer = page.layers[place];
  const block = element(`weights-${place}-${head}`);
  const rows = page.sequences[layer.rows], columns = page.sequences[layer.columns];
  const [bytes, mask] = await Promise.all([unpacked(block.id), maskOf(block.dataset.mask)]);
  const codes = new Int16Array(rows.length * columns.length);
  const width = columns.length, stride = Math.ceil(width / 8);
  for (let row = 0, cell = 0; row < rows.length; row++) {
    const low = row * width * 2, high = low + width;  // the low bytes of a row, then its high bytes
    for (let column = 0; column < width; column++, cell++) {
      codes[cell] = bytes[low + column] | (bytes[high + column] << 8);
    }
  }
  const isAllowed = (row, column) => ((mask[row * stride + (column >> 3)] >> (7 - (column & 7))) & 1) === 1;
  // Rows that may attend to no key at all, those that are not in the page among them.
  const blind = new Set(block.dataset.blind.split(" ").filter(Boolean).map(Number));
  const code = (row, column) => codes[row * width + column];
  const seen = (row, column) => (isAllowed(row, column) ? code(row, column) : MASKED);
  return { place, head, layer, rows, columns, isAllowed, blind, code, seen, key: block.dataset.key };
}

// A cell in words, to the digits that the page has.
const written = (code) => MARKS.get(code)?.name ?? (code / UNIT).toFixed(page.decimals);

// An IEEE 754 half-precision number from its bits.
function half(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

const range = (count) => Array(count).keys();
