// The sentence: each key on the colour of the weight that the chosen query gives it. Queries that are not the keys, as of
// a target or where only some are shown, stand above it.

function buildSentence(view) {
  const isOne = view.layer.rows === view.layer.columns;
  element("queries-part").hidden = isOne;
  for (const [id, tokens] of [["queries", isOne ? [] : view.rows], ["keys", view.columns]]) {
    element(id).replaceChildren(...tokens.map((token, index) => {
      const option = labelled("span", token.label);
      option.setAttribute("role", "option");
      option.dataset.index = index;
      option.dataset.segment = token.segment;
      return option;
    }));
  }
}

// Colours the keys for a query, and marks the query and the key of the cell that is looked at.
function colorSentence(view, row, column) {
  const color = painter(view.colormap, view.ramp), isOne = element("queries-part").hidden;
  [...element("keys").children].forEach((option, key) => {
    const code = view.seen(row, key), paper = color(code), mark = MARKS.get(code);
    const isDim = code === MASKED || !view.isChosen(row, key);
    option.style.cssText = isDim ? "color: var(--dim)" : `background: rgb(${paper.join(" ")}); color: ${inkOn(paper)}`;
    option.title = mark ? mark.name : `weight ${written(code)}`;
    option.dataset.marks = (isOne && key === row ? "▸" : "") + (key === column ? "▾" : "");
  });
  for (const [list, place] of [["queries", row], ["keys", isOne ? row : column]]) {
    [...element(list).children].forEach((option, index) => {
      option.setAttribute("aria-selected", String(index === place));
      option.tabIndex = index === place ? 0 : -1;
    });
  }
}

// `move` takes a row and a column, of which one may be null: as it was. Of one sequence a token is chosen as the query.
function listenToSentence(move) {
  for (const id of ["queries", "keys"]) {
    const list = element(id);
    const go = (index, isSpoken) => move(...(id === "keys" && !element("queries-part").hidden ? [null, index] : [index, null]), isSpoken);
    list.addEventListener("click", (event) => {
      const index = event.target.dataset.index;
      if (index !== undefined) go(Number(index), false);
    });
    list.addEventListener("keydown", (event) => {
      const last = list.children.length - 1, index = Number(event.target.dataset.index);
      const wanted = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
      if (wanted === undefined) return;
      event.preventDefault();
      go(Math.max(0, Math.min(last, wanted)), true);
      list.querySelector("[aria-selected=true]").focus();
    });
  }
}
