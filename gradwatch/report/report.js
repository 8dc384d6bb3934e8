"use strict";
(() => {
  const root = document.documentElement;
  const readout = document.getElementById("readout");
  const pictures = JSON.parse(document.getElementById("data").textContent);

  // Text goes into the page as text only: names of layers are whatever a user typed.
  const say = (lines) => { readout.textContent = lines.filter(Boolean).join("\n"); };

  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = root.dataset.theme || "system";
    const next = themes[(themes.indexOf(now) + 1) % themes.length];
    if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
    button.textContent = `Theme: ${next}`;
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((each) => { each.open = false; }));

  async function inflate(text) {
    const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
    return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  }

  const range = (low, high) => {
    const [from, to] = [number(low), number(high)];
    return from === to ? from : `${from} to ${to}`;
  };

  function span(picture, column) {
    if (picture.labels) return picture.labels[column];
    const [first, last] = picture.steps[column].map((step) => step.toLocaleString("en"));
    return first === last ? `step ${first}` : `steps ${first} to ${last}`;
  }

  // Low byte and high byte of a 16-bit number stand apart: so they deflate better.
  function grid(picture, bytes) {
    const cells = picture.rows.length * picture.columns;
    const word = (plane, at) => bytes[plane * cells + at] | (bytes[(plane + 1) * cells + at] << 8);
    const value = (code) => (code < 2 ? 0 : 10 ** (picture.base + (code - 2) * picture.step));
    return (column, row) => {
      const at = row * picture.columns + column;
      const low = word(0, at);
      const marks = bytes[4 * cells + at];
      const known = low ? range(value(low), value(low + word(2, at))) : "";
      const named = picture.marks.filter((_, bit) => marks & (1 << bit));
      return [picture.rows[row], span(picture, column), known && `${picture.unit}: ${known}`,
        ...named, !known && !marks && picture.absent];
    };
  }

  function lines(picture, bytes) {
    const values = new Float32Array(bytes.buffer);
    return (column) => [span(picture, column), ...picture.series.map((name, index) => {
      const low = values[2 * index * picture.columns + column];
      const high = values[(2 * index + 1) * picture.columns + column];
      return Number.isNaN(low) ? "" : `${name}: ${range(low, high)}`;
    })];
  }

  function place(x, y) {
    readout.hidden = false;
    const box = readout.getBoundingClientRect();
    const clamp = (at, size, room) => Math.max(4, Math.min(at, room - size - 4));
    const above = y - box.height - 14;
    readout.style.left = `${clamp(x + 14, box.width, innerWidth)}px`;
    readout.style.top = `${above > 4 ? above : clamp(y + 18, box.height, innerHeight)}px`;
  }

  async function watch(frame) {
    const picture = pictures[frame.dataset.picture];
    const bytes = await inflate(picture.packed);
    const tell = (picture.rows ? grid : lines)(picture, bytes);
    const rows = picture.rows ? picture.rows.length : 1;
    const [left, top, right, bottom] = picture.box;
    const cursor = frame.appendChild(document.createElement("div"));
    cursor.className = "cursor";
    cursor.hidden = true;
    let [column, row] = [picture.columns - 1, Math.floor(rows / 2)];

    function show(x, y) {
      const [wide, high] = [(right - left) / picture.columns, (bottom - top) / rows];
      Object.assign(cursor.style, {
        left: `${(left + column * wide) * 100}%`, width: `${wide * 100}%`,
        top: `${(top + row * high) * 100}%`, height: `${high * 100}%`,
      });
      cursor.hidden = false;
      say(tell(column, row));
      const at = cursor.getBoundingClientRect();
      place(x ?? at.right, y ?? at.top);
    }
    function hide() { cursor.hidden = true; readout.hidden = true; }
    function point(event) {
      const size = frame.getBoundingClientRect();
      const across = ((event.clientX - size.left) / size.width - left) / (right - left);
      const down = ((event.clientY - size.top) / size.height - top) / (bottom - top);
      if (across < 0 || across >= 1 || down < 0 || down >= 1) { hide(); return; }
      [column, row] = [Math.floor(across * picture.columns), Math.floor(down * rows)];
      show(event.clientX, event.clientY);
    }
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-Infinity, 0], End: [Infinity, 0], PageUp: [0, -10], PageDown: [0, 10] };
    function press(event) {
      if (event.key === "Escape") { hide(); return; }
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      column = Math.max(0, Math.min(picture.columns - 1, column + move[0]));
      row = Math.max(0, Math.min(rows - 1, row + move[1]));
      show();
    }
    frame.addEventListener("pointermove", point);
    frame.addEventListener("pointerdown", point);
    frame.addEventListener("pointerleave", hide);
    frame.addEventListener("keydown", press);
    frame.addEventListener("blur", hide);
    frame.dataset.ready = "yes";
  }

  document.querySelectorAll("[data-picture]").forEach((frame) => {
    watch(frame).catch((error) => {
      frame.title = `This browser cannot show numbers here: ${error.message}`;
    });
  });
})();
