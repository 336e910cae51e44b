"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = matchMedia("(max-width: 600px)");
  const theme = () => {
    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = {gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
                  tickfont: {color: colour("--faint")}};
    return {layout: {
      font: {color: colour("--ink"), family: "system-ui, sans-serif", size: narrow.matches ? 11 : 13},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
      hoverlabel: {bgcolor: colour("--ground"), font: {color: colour("--ink")}, align: "left"},
    }};
  };
  const draw = () => {
    for (const place of document.querySelectorAll(".chart")) {
      let text = place.nextElementSibling.textContent;
      if (dark.matches) text = text.replaceAll("#0072b2", "#56b4e9").replaceAll("rgba(0, 114, 178", "rgba(86, 180, 233");
      const told = JSON.parse(text);
      const layout = {...told.layout, template: theme(), dragmode: touch ? false : "zoom"};
      if (narrow.matches) layout.margin = {...layout.margin, l: 45, r: 10};
      Plotly.react(place, told.data, layout, {responsive: true, displaylogo: false, displayModeBar: !touch && "hover"});
    }
  };
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
})();
