// The lines of one head: queries on the left, keys on the right, the darker the larger the weight.

const MOST_LINES = 200;  // more are not told apart
const STRENGTHS = 24;  // lines of about one weight are drawn in one go
const linesWidth = () => (window.innerWidth < 700 ? 90 : 200);
const shownAlone = { side: null, index: 0, isKept: false };
const threshold = () => Math.round(element("threshold").value ** 2 / 10);  // in thousandths: small weights have most room

function buildLines(view) {
  const longest = Math.max(view.rows.length, view.columns.length);
  const height = longest <= 64 ? 20 : longest <= 200 ? 16 : 12;
  sized(element("lines-canvas"), linesWidth(), height * longest);
  element("lines").style.setProperty("--line", `${height}px`);
  for (const [id, tokens] of [["queries", view.rows], ["keys", view.columns]]) {
    const hasPair = tokens.some((token) => token.segment === 1);
    element(id).replaceChildren(...tokens.map((token, index) => {
      const option = labelled("div", token.label);
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      option.tabIndex = index ? -1 : 0;
      option.dataset.index = index;
      if (hasPair && token.segment === 1) option.className = "second";
      return option;
    }));
  }
  release();
}

function drawLines(view) {
  const height = parseInt(element("lines").style.getPropertyValue("--line"));
  const width = linesWidth();
  const context = sized(element("lines-canvas"), width, height * Math.max(view.rows.length, view.columns.length));
  context.strokeStyle = themed(shownAlone.side ? "--accent" : "--ink");
  const paths = Array.from(range(STRENGTHS + 1), () => new Path2D());
  const lines = strongest(view), top = view.top || 1;
  for (const [row, column, code] of lines) {
    const path = paths[Math.ceil(Math.min(1, code / top) * STRENGTHS)];
    path.moveTo(0, (row + 0.5) * height);
    path.lineTo(width, (column + 0.5) * height);
  }
  paths.forEach((path, strength) => {
    context.globalAlpha = strength / STRENGTHS;
    context.lineWidth = 0.75 + (2 * strength) / STRENGTHS;
    context.stroke(path);
  });
  markOthers(view, top);
}

// Calls a function for every line: a number above 0, and not below the threshold, that the mask allows and the choices keep.
function eachLine(view, visit) {
  const { side, index } = shownAlone, weakest = Math.max(threshold(), 1);
  for (const row of side === "queries" ? [index] : range(view.rows.length)) {
    for (const column of side === "keys" ? [index] : range(view.columns.length)) {
      const code = view.seen(row, column);
      if (isNumber(code) && code >= weakest && view.isChosen(row, column)) visit(row, column, code);
    }
  }
}

// The strongest lines as row, column and code; of equal ones at the end every so many. The note says what was left out.
function strongest(view) {
  const counts = new Uint32Array(ABOVE);
  eachLine(view, (row, column, code) => counts[code]++);
  const total = counts.reduce((sum, count) => sum + count, 0);
  let least = ABOVE, above = 0;  // above: how many lines are stronger than the least one
  while (least > 1 && above + counts[least - 1] <= MOST_LINES) above += counts[--least];
  least--;
  const every = counts[least] / (MOST_LINES - above);
  let equal = 0;
  const lines = [];
  eachLine(view, (row, column, code) => {
    const isDrawn = code > least || (code === least && Math.floor(equal / every) !== Math.floor((equal++ - 1) / every));
    if (isDrawn) lines.push([row, column, code]);
  });
  element("threshold-value").textContent = written(threshold());
  element("lines-note").textContent = total === lines.length ? `all ${total} lines`
    : `${lines.length} of ${total} lines, the strongest: from ${written(lines.reduce((low, [, , code]) => Math.min(low, code), ABOVE))}`;
  return lines;
}

// Shows at the other ends what the lone token gives or gets.
function markOthers(view, top) {
  const { side, index } = shownAlone;
  for (const id of ["queries", "keys"]) {
    [...element(id).children].forEach((option, other) => {
      option.style.removeProperty("--share");
      delete option.dataset.weight;
      option.setAttribute("aria-selected", String(id === side && other === index));
      if (side === null || id === side) return;
      const [row, column] = side === "queries" ? [index, other] : [other, index];
      const code = view.seen(row, column);
      if (!view.isChosen(row, column) || code === 0) return;
      option.dataset.weight = code === MASKED ? "·" : written(code);
      if (isNumber(code)) option.style.setProperty("--share", Math.max(0, Math.min(1, code / top)));
    });
  }
}

const release = () => Object.assign(shownAlone, { side: null, index: 0, isKept: false });

// What a screen reader is told of a lone token: its largest links.
function linksInWords(view) {
  const { side, index } = shownAlone;
  const links = strongest(view).sort((one, other) => other[2] - one[2]).slice(0, 3);
  const token = (side === "queries" ? view.rows : view.columns)[index];
  const named = links.map(([row, column, code]) => {
    const other = side === "queries" ? view.columns[column] : view.rows[row];
    return `${other.index} ${other.label} ${written(code)}`;
  }).join(", ");
  const verb = side === "queries" ? "attends to" : "is attended to by";
  return `${token.index} ${token.label} ${verb} ${named || "nothing above 0.000"}`;
}

// `redraw` draws the lines anew, `say` speaks.
function listenToLines(viewOf, redraw, say) {
  const alone = (side, index, isKept) => {
    if (shownAlone.side === side && shownAlone.index === index && shownAlone.isKept === isKept) return;
    Object.assign(shownAlone, { side, index, isKept });
    redraw();
  };
  const letGo = () => {
    release();
    redraw();
  };
  element("threshold").addEventListener("input", redraw);
  for (const side of ["queries", "keys"]) {
    const list = element(side);
    const indexOf = (event) => event.target.dataset.index && Number(event.target.dataset.index);
    list.addEventListener("pointerover", (event) => {
      if (indexOf(event) !== undefined && !shownAlone.isKept) alone(side, indexOf(event), false);
    });
    list.addEventListener("pointerleave", () => shownAlone.isKept || letGo());
    list.addEventListener("click", (event) => {
      if (indexOf(event) === undefined) return;
      const isSame = shownAlone.isKept && shownAlone.side === side && shownAlone.index === indexOf(event);
      isSame ? letGo() : alone(side, indexOf(event), true);
    });
    list.addEventListener("focusin", (event) => {
      if (!event.target.matches(":focus-visible")) return;
      alone(side, indexOf(event), true);
      say(linksInWords(viewOf()));
    });
    list.addEventListener("keydown", (event) => {
      const last = list.children.length - 1, index = Number(event.target.dataset.index);
      const wanted = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: last }[event.key];
      const other = { ArrowLeft: "queries", ArrowRight: "keys" }[event.key];
      if (event.key === "Escape") letGo();
      else if (wanted !== undefined) focusOption(list, Math.max(0, Math.min(last, wanted)));
      else if (other && other !== side) focusOption(element(other), Math.min(index, element(other).children.length - 1));
      else return;
      event.preventDefault();
    });
  }
}

// One token of a list takes the tabulator, the one that had the focus last.
function focusOption(list, index) {
  for (const option of list.children) option.tabIndex = -1;
  list.children[index].tabIndex = 0;
  list.children[index].focus();
}
