// Asks for the open page again every few seconds and puts its content in place. Pages work without this, too.
"use strict";
(() => {
  const box = document.getElementById("live");
  const label = box.closest("label");
  const main = () => document.querySelector("main");
  const seconds = () => Number(main().dataset.refresh);
  let timer = 0;
  let missed = 0;

  const wanted = () => localStorage.getItem("penstock-live") !== "no";
  const busy = () => document.hidden || String(getSelection()).length > 0;

  async function refresh() {
    timer = 0;
    if (!busy() && box.checked) {
      try {
        const answer = await fetch(location.href, { signal: AbortSignal.timeout(30000) });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.querySelector("main");
        if (fresh && !busy()) {
          main().replaceWith(fresh);
          document.title = page.title;
        }
        missed = 0;
      } catch {
        missed += 1; // the console itself is away
      }
      document.body.classList.toggle("away", missed > 1);
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    label.hidden = !seconds();
    if (seconds() && box.checked) timer = setTimeout(refresh, seconds() * 1000);
  }

  box.checked = wanted();
  box.addEventListener("change", () => {
    localStorage.setItem("penstock-live", box.checked ? "yes" : "no");
    plan();
  });
  plan();
})();
