"use strict";
// Saves charts as files. Everything else on the page works without scripts.
(() => {
  const PROPERTIES = [
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap",
    "stroke-linejoin", "font-family", "font-size", "font-weight", "text-anchor",
  ];
  const PNG_SCALE = 3;

  // The chart as text, with the colours that the page shows now written into each element.
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const targets = [copy, ...copy.querySelectorAll("*")];
    [svg, ...svg.querySelectorAll("*")].forEach((element, i) => {
      const style = getComputedStyle(element);
      PROPERTIES.forEach((name) => targets[i].setAttribute(name, style.getPropertyValue(name)));
      targets[i].removeAttribute("class");
    });
    const box = svg.viewBox.baseVal;
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    return new XMLSerializer().serializeToString(copy);
  }

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function savePng(svg, blob, name) {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = svg.viewBox.baseVal.width * PNG_SCALE;
      canvas.height = svg.viewBox.baseVal.height * PNG_SCALE;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(image.src);
      canvas.toBlob((png) => download(png, name), "image/png");
    };
    image.src = URL.createObjectURL(blob);
  }

  document.querySelectorAll("figure").forEach((figure) => {
    const svg = figure.querySelector("svg");
    const title = svg.querySelector("title").textContent;
    figure.querySelector(".save").hidden = false;
    figure.querySelectorAll("button").forEach((button) => {
      button.setAttribute("aria-label", `${button.textContent}: ${title}`);
      button.addEventListener("click", () => {
        const name = `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${button.dataset.save}`;
        const blob = new Blob([standalone(svg)], { type: "image/svg+xml" });
        if (button.dataset.save === "svg") download(blob, name);
        else savePng(svg, blob, name);
      });
    });
  });
})();
