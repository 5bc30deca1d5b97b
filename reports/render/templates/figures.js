
// Shows the text of the mark nearest to the pointer at once. Without this script, browsers show it after a while.
{
  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  for (const svg of document.querySelectorAll(".figures svg")) {
    const marks = [...svg.querySelectorAll("use > title, path > title, g > title")].map((title) => {
      const mark = title.parentElement;
      mark.dataset.text = title.textContent;
      title.remove();
      return mark;
    });
    svg.addEventListener("pointermove", ({ clientX, clientY, target }) => {
      let [least, shown] = [20, target.closest("[data-text]")?.dataset.text ?? ""];
      for (const mark of shown ? [] : marks) {
        const box = mark.getBoundingClientRect();
        const distance = Math.hypot((box.left + box.right) / 2 - clientX, (box.top + box.bottom) / 2 - clientY);
        if (distance < least) [least, shown] = [distance, mark.dataset.text];
      }
      tip.textContent = shown;
      tip.hidden = !shown;
      const width = tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(clientX + 14, innerWidth - width - 8)) + scrollX}px`;
      tip.style.top = `${clientY + 16 + scrollY}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
}
