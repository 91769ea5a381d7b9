// From a cell to its colour. What is masked or no number has a colour that no map has, and a mark where it fits.

const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const packedColor = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;  // as ImageData has it

// How far along the colours up to `top` a number stands, from 0 to 1: what Scale of render/palette.py says.
function placed(number, ramp, top = UNIT) {
  const share = Math.max(0, Math.min(1, number / top));
  if (ramp === "log") return 1 + Math.log(Math.max(share, 1 / page.widest)) / Math.log(page.widest);
  return ramp === "sqrt" ? Math.sqrt(share) : share;
}

// A function from a cell to its colour, for one colour map, theme and ramp.
function painter(colormap, ramp, top = UNIT) {
  const colors = page.colormaps[colormap], masked = channels(themed("--masked"));
  return (code) => {
    if (code === MASKED) return masked;
    return MARKS.get(code)?.color ?? colors[Math.min(255, Math.floor(placed(code, ramp, top) * 256))];
  };
}

// A colour with little of it left.
function faint(color) {
  const paper = channels(themed("--paper"));
  return color.map((channel, at) => Math.round(channel + (paper[at] - channel) * 0.8));
}

// Black or white, whichever is read better on a colour (relative luminance, WCAG 2.2).
function inkOn(color) {
  const [red, green, blue] = color.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000000" : "#ffffff";
}

const MOST_PIXELS = 32e6;  // of a canvas, four bytes each

// A canvas of this many CSS pixels, sharp on the screen that it is on; returns its context.
function sized(canvas, width, height) {
  const most = Math.min(16000 / Math.max(width, height), Math.sqrt(MOST_PIXELS / (width * height)));
  const sharpness = Math.min(window.devicePixelRatio || 1, most);
  [canvas.width, canvas.height] = [width, height].map((side) => Math.round(side * sharpness));
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(sharpness, sharpness);
  return context;
}

// A picture with one pixel a cell.
function picture(width, height, colorAt) {
  const canvas = new OffscreenCanvas(width, height);
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0, at = 0; y < height; y++) for (let x = 0; x < width; x++, at++) pixels[at] = packedColor(colorAt(y, x));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
