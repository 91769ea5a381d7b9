// The sentence: each key on the colour of the weight that the chosen query gives it. Queries that are not the keys, as of
// a target or where only some are shown, stand above it. Tokens that are cells of a picture stand there alone, and words
// are shown by what they give to the key too.

function buildSentence(view) {
  const isOne = view.layer.rows === view.layer.columns;
  element("queries-part").hidden = isOne;
  element("attending-part").hidden = !looks(view);
  for (const [id, tokens] of [["queries", isOne ? [] : view.rows], ["keys", view.columns], ["attending", looks(view) ? view.rows : []]]) {
    const options = tokens.map((token, index) => {
      const option = labelled("span", token.label);
      option.setAttribute("role", "option");
      option.dataset.index = index;
      option.dataset.segment = token.segment;
      return option;
    });
    element(id).replaceChildren(...options.filter((_, index) => !isCell(view, tokens[index])));
  }
}

// Colours the keys for a query, and marks the query and the key of the cell that is looked at.
function colorSentence(view, row, column) {
  const color = painter(view.colormap, view.ramp), isOne = element("queries-part").hidden;
  for (const option of element("keys").children) {
    const key = Number(option.dataset.index);
    const code = view.seen(row, key);
    colorOption(option, code, code !== MASKED && view.isChosen(row, key), color);
    option.dataset.marks = (isOne && key === row ? "▸" : "") + (key === column ? "▾" : "");
  }
  for (const [list, place] of [["queries", row], ["keys", isOne ? row : column], ["attending", row]]) {
    const options = [...element(list).children], at = options.findIndex((option) => Number(option.dataset.index) === place);
    options.forEach((option, index) => {
      option.setAttribute("aria-selected", String(index === at));
      option.tabIndex = index === Math.max(at, 0) ? 0 : -1;
    });
  }
}

function colorOption(option, code, isColored, color) {
  const paper = color(code);
  option.style.cssText = isColored ? `background: rgb(${paper.join(" ")}); color: ${inkOn(paper)}` : "color: var(--dim)";
  option.title = MARKS.get(code)?.name ?? `weight ${written(code)}`;
}

// Colours the words by what each gives to the key, as the picture is coloured.
function colorAttending(view, row, column, color) {
  element("attended").textContent = named(view, view.columns[column]);
  for (const option of element("attending").children) {
    const query = Number(option.dataset.index), code = view.seen(query, column);
    colorOption(option, code, code !== MASKED, color);
    option.dataset.marks = query === row ? "▸" : "";
  }
}

// `move` takes a row and a column, of which one may be null: as it was. Of one sequence a token is chosen as the query.
function listenToSentence(move) {
  for (const id of ["queries", "keys", "attending"]) {
    const list = element(id);
    const go = (index, isSpoken) => move(...(id === "keys" && !element("queries-part").hidden ? [null, index] : [index, null]), isSpoken);
    list.addEventListener("click", (event) => {
      const index = event.target.dataset.index;
      if (index !== undefined) go(Number(index), false);
    });
    list.addEventListener("keydown", (event) => {
      const options = [...list.children], last = options.length - 1, index = options.indexOf(event.target);
      const wanted = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
      if (wanted === undefined) return;
      event.preventDefault();
      const option = options[Math.max(0, Math.min(last, wanted))];
      go(Number(option.dataset.index), true);
      option.focus();
    });
  }
}
