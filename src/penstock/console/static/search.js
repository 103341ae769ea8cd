// Goes on with a search by itself, a step at a time, until the page is full, all was looked at, or somebody stops it.
"use strict";
(() => {
  const state = () => document.getElementById("search");
  if (!state()) return;
  const rows = () => document.querySelectorAll("#found tbody tr").length;
  const most = Number(state().dataset.most);
  const button = document.createElement("button");
  button.type = "button";
  let running = null; // what ends the step that is under way
  let looked = Number(state().dataset.looked);

  function show(text) {
    const words = state().querySelector(".words");
    words.textContent = text;
    state().append(button);
    button.textContent = running ? "Stop" : "Go on";
    button.hidden = !state().dataset.next || (!running && rows() >= most);
  }

  function words() {
    const { percent, next } = state().dataset;
    const all = next ? `${percent} % of the stream` : "all of the stream";
    return `Looked at ${looked.toLocaleString("en")} messages, ${all}; found ${rows().toLocaleString("en")}.`;
  }

  function add(page) {
    const fresh = page.getElementById("found");
    const body = document.querySelector("#found tbody");
    const more = fresh.querySelectorAll("tbody tr");
    if (!body && more.length) document.getElementById("found").replaceWith(document.importNode(fresh, true));
    else for (const item of more) body.append(document.importNode(item, true));
    const next = page.getElementById("search");
    looked += Number(next.dataset.looked);
    Object.assign(state().dataset, { percent: next.dataset.percent, next: next.dataset.next ?? "" });
    state().querySelector("progress").value = Number(next.dataset.percent);
    const further = document.getElementById("further");
    if (further && next.dataset.next) further.href = next.dataset.next;
    else if (further) further.remove();
  }

  async function go() {
    running = new AbortController();
    const mine = running;
    let trouble = "";
    show(words());
    try {
      while (state().dataset.next && rows() < most && running === mine) {
        const answer = await fetch(state().dataset.next, { signal: mine.signal, headers: { accept: "text/html" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!page.getElementById("search")) {
          trouble = ` ${page.getElementById("main")?.textContent.trim().replace(/\s+/g, " ") ?? "It failed."}`;
          break;
        }
        add(page);
        show(words());
      }
    } catch (error) {
      if (error.name !== "AbortError") trouble = " The console does not answer.";
    }
    running = null;
    show(words() + trouble);
  }

  button.addEventListener("click", () => {
    if (running) running.abort();
    else go();
  });
  if (state().dataset.next && rows() < most) go();
  else show(words());
})();
