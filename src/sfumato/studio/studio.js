"use strict";
// Forms marked data-live show their answer as they change; regions marked data-poll are asked for again while something in them
// is going on. Everything works without this script too, by buttons and links.

const turns = new WeakMap();

async function fill(place, address) {
  const turn = (turns.get(place) || 0) + 1;
  turns.set(place, turn);
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(address, { credentials: "omit", cache: "no-store" });
    const text = await answer.text();
    if (turns.get(place) === turn) place.innerHTML = text; // unless something later was asked meanwhile
  } catch {
    // The studio was closed: what is shown stays.
  }
  if (turns.get(place) === turn) place.removeAttribute("aria-busy");
}

function asked(form) {
  const words = new URLSearchParams(new FormData(form));
  const slider = form.querySelector("[data-names]");
  if (slider) words.set("run", JSON.parse(slider.dataset.names)[slider.value]);
  return words;
}

for (const form of document.querySelectorAll("form[data-live]")) {
  const place = document.getElementById(form.dataset.target);
  let waiting = 0;
  const change = () => {
    const words = asked(form);
    history.replaceState(null, "", `${form.getAttribute("action")}?${words}`);
    words.set("part", "1");
    clearTimeout(waiting);
    waiting = setTimeout(() => fill(place, `${form.getAttribute("action")}?${words}`), 150);
  };
  form.addEventListener("input", (event) => {
    const moved = event.target;
    if (moved.dataset.words) {
      const word = JSON.parse(moved.dataset.words)[moved.value];
      document.getElementById(moved.dataset.output).textContent = word;
      moved.setAttribute("aria-valuetext", `ε = ${word}`);
    }
    if (moved.dataset.power) form.elements[moved.dataset.power].value = Number((10 ** (moved.value / 10)).toPrecision(2));
    if (moved.name === "epsilon") place_slider(form);
    change();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); change(); });
  place_slider(form);
}

function place_slider(form) {
  const slider = form.querySelector("[data-power]");
  if (slider && form.elements.epsilon.value > 0) slider.value = Math.round(10 * Math.log10(form.elements.epsilon.value));
}

for (const place of document.querySelectorAll("[data-poll]")) {
  setInterval(() => {
    // Not while somebody is about to tick or press something in it.
    if (place.querySelector("[data-going]") && !place.contains(document.activeElement)) fill(place, place.dataset.poll);
  }, 2000);
}
