/* Explorers without a kernel: a control exchanges one image for another. */
const nameOf = (control) => control.labels[0].firstChild.textContent.trim();

/* A button moves its slider step by step, once. Nothing moves before it is pressed, so
   that readers who want less motion decide for themselves. */
const playOn = (button, slider, image) => {
  let timer = 0;
  const call = (word) => {
    button.textContent = word;
    button.setAttribute("aria-label", `${word} ${nameOf(slider)}`);
    image.setAttribute("aria-live", word === "Play" ? "polite" : "off");
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    call("Play");
  };
  const move = (position) => {
    slider.value = position;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const step = () => {
    if (!image.complete) return; // the page is slower than the clock
    if (slider.value === slider.max) return stop();
    move(Number(slider.value) + 1);
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    if (slider.value === slider.max) move(0);
    timer = setInterval(step, Number(button.dataset.milliseconds));
    call("Pause");
  });
};

addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".fl-frames")) {
    const controls = [...box.querySelectorAll("input, select")];
    const image = box.querySelector("img");
    const chosen = (control) => control.type === "range"
      ? control.nextElementSibling.value
      : control.selectedOptions[0].text;
    box.addEventListener("input", () => {
      const shown = controls.map((control) => `${nameOf(control)} ${chosen(control)}`);
      const positions = controls.map((control) => control.value).join("_");
      image.src = `${box.dataset.address}/${positions}.webp`;
      image.alt = `The figure for ${shown.join(", ")}`;
    });
    for (const button of box.querySelectorAll(".fl-played button")) {
      playOn(button, button.parentElement.querySelector("input"), image);
    }
  }
});
