
// Clicking a column head sorts its table; pinned rows stay at the top. The page is complete without this script.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const pinned = Number(table.dataset.pinned);
  table.querySelectorAll("th").forEach((head, column) => {
    head.setAttribute("role", "button");
    head.tabIndex = 0;
    const key = (row) => row.cells[column].dataset.value;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].slice(pinned).sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (!head.classList.contains("number")) {
          return (down ? -1 : 1) * one.cells[column].textContent.localeCompare(other.cells[column].textContent);
        }
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        return (down ? -1 : 1) * (Number(a) - Number(b));
      });
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
