// Click a heading to sort: best first, then the other way round; empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    button.addEventListener("click", () => {
      const first = heading.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value;
      const compare = (a, b) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (column ? a - b : a.localeCompare(b));
      };
      body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
    });
  });
}
