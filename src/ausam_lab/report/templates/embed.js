for (const figure of document.querySelectorAll("figure.chart")) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  // ast: expressions are interpreted, because the page's policy allows no eval
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip: { disableDefaultStyle: true } };
  vegaEmbed(figure.querySelector("div"), spec, options).catch(console.error);
}