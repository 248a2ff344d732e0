"use strict";
// What every page draws with: elements of the page and of pictures, from the data that it carries.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}

function tag(name, parent, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}

// A table that is wider than a narrow page is shown as one block for each row, with the names of the columns in it.
function stack() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.remove("stacked");
    box.classList.toggle("stacked", innerWidth <= 820 && box.scrollWidth > box.clientWidth);
  }
}

for (const table of document.querySelectorAll(".scroll table")) {
  const heads = [...table.querySelectorAll("thead th")].map((one) => one.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, at) => { if (at) cell.dataset.column = heads[at]; });
}
stack();
addEventListener("resize", stack);
