// Keeps the open page fresh, turns tables in place, and knows a few keys. Every page works without this, too.
"use strict";
(() => {
  const main = () => document.getElementById("main");
  const box = document.getElementById("live");
  const trouble = document.getElementById("trouble");
  const refreshes = () => Number(main().dataset.refresh) > 0;
  const parse = (html) => new DOMParser().parseFromString(html, "text/html");

  // -- putting fresh content in place: what is the same stays the same element, with its focus, scroll and state -------

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "");
  const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

  function become(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      // Whether details are open is the reader's own choice.
      if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    const keyed = new Map();
    for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    const stays = new Set([...fresh.children].map(keyOf));
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      while (place && keyOf(place) && !stays.has(keyOf(place))) {
        const gone = place;
        place = place.nextSibling;
        gone.remove();
      }
      let match = place && !keyOf(place) && alike(place, child) ? place : null;
      if (keyOf(child)) match = keyed.get(keyOf(child)) ?? null;
      if (!match || !alike(match, child)) {
        old.insertBefore(document.importNode(child, true), place);
        continue;
      }
      keyed.delete(keyOf(match));
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      become(match, child);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function put(old, fresh) {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const region = focused?.closest("[tabindex]");
    become(old, fresh);
    if (!focused || document.activeElement === focused) return;
    // A row that changed its place loses the focus on the way; of a row that is gone, its table takes it.
    const heir = focused.isConnected ? focused : region?.isConnected ? region : main();
    heir.focus({ preventScroll: true });
  }

  // -- live: the page's own address, as server-sent events -------------------------------------------------------------

  let source = null;
  let again = 0;
  let failures = 0;
  let heard = 0;
  const waiting = new Map(); // parts that somebody has marked text in

  function marked(element) {
    const chosen = getSelection();
    return chosen && !chosen.isCollapsed && chosen.rangeCount > 0 && chosen.getRangeAt(0).intersectsNode(element);
  }

  function say(text) {
    trouble.textContent = text;
    trouble.hidden = !text;
    document.body.classList.toggle("away", Boolean(text));
  }

  function take(id, html) {
    const old = document.getElementById(id);
    const fresh = parse(html).getElementById(id);
    waiting.delete(id);
    if (!old || !fresh) return;
    if (marked(old)) waiting.set(id, html);
    else put(old, fresh);
    box.closest("label").hidden = !refreshes();
  }

  function listen(kind, act) {
    source.addEventListener(kind, (event) => {
      heard = Date.now();
      failures = 0;
      act(JSON.parse(event.data));
      document.body.dataset.looks = Number(document.body.dataset.looks ?? 0) + 1; // for whoever watches a page
    });
  }

  function open() {
    close();
    // A browser has few connections to one host: a page that nobody sees gives its own back.
    if (!refreshes() || !box.checked || document.hidden) return;
    heard = Date.now();
    source = new EventSource(location.pathname + location.search);
    listen("page", (data) => {
      say("");
      document.title = parse(`<title>${data.title}</title>`).title;
      take("main", data.main);
    });
    listen("parts", (data) => {
      say("");
      for (const [id, html] of Object.entries(data)) take(id, html);
    });
    listen("same", () => say(""));
    listen("failed", (data) => say(`${data.what} ${data.remedy}`));
    source.onerror = () => {
      failures += 1;
      if (failures > 1) say("The console does not answer: what you see is old.");
      close();
      again = setTimeout(open, Math.min(30000, 250 * 2 ** failures));
    };
  }

  function close() {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  }

  setInterval(() => {
    if (source && Date.now() - heard > 90000) source.onerror(); // neither an answer nor an end
    for (const [id, html] of [...waiting]) take(id, html);
  }, 1000);

  // -- other views of the same page: sorted, filtered, further ------------------------------------------------------------

  let asking = null;

  async function turn(address, keep) {
    asking?.abort();
    asking = new AbortController();
    const mine = asking;
    try {
      const answer = await fetch(address, { signal: mine.signal, headers: { accept: "text/html" } });
      const page = parse(await answer.text());
      const fresh = page.getElementById("main");
      if (mine !== asking || !fresh) return;
      if (keep === "push") history.pushState(null, "", address);
      if (keep === "replace") history.replaceState(null, "", address);
      put(main(), fresh);
      for (const field of main().querySelectorAll("input[type=search]")) {
        if (field !== document.activeElement) field.value = field.defaultValue;
      }
      const twin = page.querySelector("footer a");
      if (twin) document.querySelector("footer a")?.setAttribute("href", twin.getAttribute("href"));
      open();
    } catch (error) {
      if (error.name !== "AbortError") location.assign(address);
    }
  }

  const asked = (form) => {
    const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    return `${location.pathname}?${words}`;
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-turn]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
    event.preventDefault();
    turn(link.href, "push");
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-turn]")) return;
    event.preventDefault();
    turn(asked(event.target), "push");
  });
  let typing = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-turn]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => turn(asked(form), "replace"), 250);
  });
  addEventListener("popstate", () => turn(location.href, ""));

  // -- charts: the value under the pointer, read off the line -----------------------------------------------------------

  const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

  function inWords(value, unit) {
    const steps = unit === "bytes" ? [1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]] : null;
    if (unit === "s") {
      if (value < 1) return `${number(value * 1000, 1)} ms`;
      return value < 120 ? `${number(value, 1)} s` : value < 7200 ? `${number(value / 60, 1)} min` : `${number(value / 3600, 1)} h`;
    }
    if (!steps) return number(value, unit.endsWith("/s") && value < 10 ? 1 : 0);
    let step = 0;
    for (; value >= steps[0] && step < steps[1].length - 1; step += 1) value /= steps[0];
    return `${number(value, step ? 1 : 0)} ${steps[1][step]}`;
  }

  function read(path, x) {
    // The points of a path are as the console drew them: "M0.0,3.0 L6.1,4.0 ...", in a picture of 600 times 120.
    let best = null;
    for (const [, left, top] of path.matchAll(/([\d.]+),([\d.]+)/g)) {
      if (!best || Math.abs(left - x) < Math.abs(best[0] - x)) best = [Number(left), Number(top)];
    }
    return best;
  }

  function tell(plot, x) {
    const [wide, high] = plot.querySelector("svg").getAttribute("viewBox").split(" ").slice(2).map(Number);
    const lines = [...plot.querySelectorAll(".stroke")].map((line) => read(line.getAttribute("d"), x * wide)).filter(Boolean);
    if (!lines.length) return;
    const { top, seconds, late, unit } = plot.dataset;
    const values = lines.map(([, y]) => inWords((Math.max(0, high - 1 - y) / (high - 4)) * top, unit));
    const ago = inWords((1 - lines[0][0] / wide) * seconds + Number(late), "s");
    const [mark, told] = ["mark", "told"].map((name) => {
      const made = plot.querySelector(`.${name}`) ?? plot.appendChild(document.createElement("span"));
      made.className = name;
      return made;
    });
    told.textContent = `${values.join(" · ")}, ${ago} ago`;
    const place = (lines[0][0] / wide) * plot.querySelector("svg").getBoundingClientRect().width;
    mark.style.left = `${place}px`;
    told.style.left = `${place}px`;
    told.style.transform = lines[0][0] < wide / 2 ? "translateX(6px)" : "translateX(calc(-100% - 6px))";
  }

  document.addEventListener("pointermove", (event) => {
    const over = event.target.closest?.(".plot[data-top]");
    for (const old of document.querySelectorAll(".plot .mark, .plot .told")) if (old.parentNode !== over) old.remove();
    if (!over) return;
    const box = over.querySelector("svg").getBoundingClientRect();
    tell(over, Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });

  // -- keys --------------------------------------------------------------------------------------------------------------

  function step(by) {
    const rows = [...main().querySelectorAll("tbody tr")].filter((row) => row.querySelector("a"));
    const here = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[here < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, here + by))];
    next?.querySelector("a").focus();
  }

  const keys = {
    "/": () => main().querySelector("input[type=search]")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    n: () => main().querySelector("a[rel=next]")?.click(),
    p: () => main().querySelector("a[rel=prev]")?.click(),
    l: () => !box.closest("label").hidden && box.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.querySelector(".keys").hidden = false;

  // On a narrow screen the menu is wider than the window: the page that is open is in sight.
  const menu = document.querySelector("header nav");
  const here = menu.querySelector("[aria-current]");
  if (here) menu.scrollLeft = here.offsetLeft - menu.offsetLeft - (menu.clientWidth - here.offsetWidth) / 2;

  box.checked = localStorage.getItem("penstock-live") !== "no";
  box.addEventListener("change", () => {
    localStorage.setItem("penstock-live", box.checked ? "yes" : "no");
    if (!box.checked) say("");
    open();
  });
  document.addEventListener("visibilitychange", open);
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  box.closest("label").hidden = !refreshes();
})();
