
// Sorting and filtering of tables, and opening of sections for old browsers that print. The page is complete without this script.
{
  const FILTERED_FROM = 6; // rows; shorter tables have no filter
  const textOf = (cell) => cell.textContent.trim();
  // Each row with those that stay below it.
  const unitsOf = (rows) => rows.reduce((units, row) => {
    if ("under" in row.dataset && units.length) units.at(-1).push(row);
    else units.push([row]);
    return units;
  }, []);

  const addSorting = (table) => {
    const body = table.tBodies[0];
    const pinned = Number(table.dataset.pinned);
    const heads = table.querySelectorAll("th");
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = head.title;
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.value;
        const units = unitsOf([...body.rows].slice(pinned)).sort(([one], [other]) => {
          const [a, b] = [key(one), key(other)];
          if (!head.classList.contains("number")) {
            return (down ? -1 : 1) * textOf(one.cells[column]).localeCompare(textOf(other.cells[column]));
          }
          if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
          return (down ? -1 : 1) * (Number(a) - Number(b));
        });
        body.append(...units.flat());
      });
    });
  };

  const addFilter = (table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FILTERED_FROM || table.closest(".prices")) return;
    const line = document.createElement("p");
    const label = document.createElement("label");
    const field = document.createElement("input");
    const status = document.createElement("span");
    line.className = "filter";
    field.type = "search";
    label.append("Filter rows ", field);
    status.setAttribute("role", "status");
    line.append(label, " ", status);
    table.parentElement.before(line);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      unitsOf(rows).forEach((unit) => {
        const text = unit.map(textOf).join(" ").toLowerCase();
        unit.forEach((row) => { row.hidden = !words.every((word) => text.includes(word)); });
      });
      const shown = rows.filter((row) => !row.hidden).length;
      status.textContent = words.length ? `${shown} of ${rows.length} rows shown` : "";
    });
  };

  document.querySelectorAll("table").forEach((table) => { addSorting(table); addFilter(table); });

  // A link to a closed section opens it.
  const openTarget = () => {
    const section = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (section instanceof HTMLDetailsElement) section.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((section) => { section.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((section) => { section.open = false; }));
}
