
// Replaces static figures by interactive ones when they come near the screen. Prints, and pages without JavaScript, keep the static ones.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const options = { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtonsToRemove: ["toImage", "lasso2d", "select2d", "autoScale2d"] };
  // Colours may be CSS variables, which follow the scheme of the page; texts are never read as such.
  const resolved = (value, key, styles) => {
    if (Array.isArray(value)) return value.map((item) => resolved(item, "", styles));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolved(item, name, styles)]));
    }
    const variable = /color$/.test(key) && /^var\((--[a-z]+)\)$/.exec(value);
    return variable ? styles.getPropertyValue(variable[1]).trim() : value;
  };
  const draw = async (plot) => {
    const figure = JSON.parse(plot.nextElementSibling.textContent);
    const { data, layout } = resolved(figure, "", getComputedStyle(document.documentElement));
    plot.parentElement.classList.add("drawn");
    // On narrow screens a legend beside the axes would leave them no room.
    if (plot.clientWidth < 700) Object.assign(layout.legend, { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" });
    await Plotly.react(plot, data, layout, options);
    plot.dataset.drawn = "";
  };
  const plots = document.querySelectorAll(".plot");
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      observer.unobserve(entry.target);
      draw(entry.target.querySelector(".plot"));
    }
  }, { rootMargin: "300px" });
  plots.forEach((plot) => observer.observe(plot.parentElement));
  dark.addEventListener("change", () => plots.forEach((plot) => plot.dataset.drawn !== undefined && draw(plot)));
}
