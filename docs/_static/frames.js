/* Explorers without a kernel: a control exchanges one image for another. */
addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".fl-frames")) {
    const controls = [...box.querySelectorAll("input, select")];
    const image = box.querySelector("img");
    const chosen = (control) => control.type === "range"
      ? JSON.parse(control.dataset.choices)[control.value]
      : control.selectedOptions[0].text;
    box.addEventListener("input", () => {
      const shown = controls.map((control) => {
        const text = chosen(control);
        const label = control.labels[0].firstChild.textContent.trim();
        if (control.type === "range") {
          control.setAttribute("aria-valuetext", text);
          control.nextElementSibling.textContent = text;
        }
        return `${label} ${text}`;
      });
      const positions = controls.map((control) => control.value).join("_");
      image.src = `${box.dataset.address}/${positions}.webp`;
      image.alt = `The figure for ${shown.join(", ")}`;
    });
  }
});
