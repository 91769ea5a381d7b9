// A picture to keep of what is shown: the map as it is drawn, what it is of, and its legend.

const PICTURE_MARGIN = 12, PICTURE_LINE = 20;

function pictureOf(view) {
  const map = element("map-cells"), legend = element("legend");
  const [mapWidth, mapHeight] = [map, map].map((each, at) => parseFloat(at ? each.style.height : each.style.width));
  const legendBox = legend.getBoundingClientRect();
  const texts = [headInWords(view), page.title, ...[page.text, page.pair, page.target].filter(Boolean)];
  const width = Math.max(mapWidth, legendBox.width), above = texts.length * PICTURE_LINE + PICTURE_MARGIN;
  const canvas = document.createElement("canvas");
  const context = sized(canvas, width + 2 * PICTURE_MARGIN, above + mapHeight + legendBox.height + 3 * PICTURE_MARGIN);
  context.fillStyle = themed("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate(PICTURE_MARGIN, PICTURE_MARGIN);
  context.textBaseline = "top";
  texts.forEach((text, line) => {
    context.font = `${line ? "" : "bold "}13${LABEL_FONT}`;
    context.fillStyle = themed(line ? "--dim" : "--ink");
    context.fillText(clipped(context, text, width), 0, line * PICTURE_LINE);
  });
  context.drawImage(map, 0, above, mapWidth, mapHeight);
  paint(context, legend, 0, above + mapHeight + PICTURE_MARGIN);
  return canvas;
}

// Draws the words and the canvases of an element where they stand in it.
function paint(context, root, left, top) {
  const origin = root.getBoundingClientRect();
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  const words = document.createRange();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    words.selectNodeContents(node);
    const box = (node.localName === "canvas" ? node : words).getBoundingClientRect();
    const x = left + box.left - origin.left, y = top + box.top - origin.top;
    if (node.localName === "canvas") context.drawImage(node, x, y, box.width, box.height);
    if (node.nodeType !== Node.TEXT_NODE) continue;
    const style = getComputedStyle(node.parentElement);
    context.font = `${style.fontSize} ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.fillText(node.data.trim(), x + (node.data.startsWith(" ") ? 3 : 0), y + 2, Math.max(box.width, 1));
  }
}

function listenToSaving(viewOf) {
  element("save").addEventListener("click", () => {
    const { layer, head } = viewOf();
    pictureOf(viewOf()).toBlob((picture) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(picture);
      link.download = `layer-${layer.layer}-${layer.kind === "self" ? "" : `${layer.kind}-`}head-${head}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    });
  });
}
