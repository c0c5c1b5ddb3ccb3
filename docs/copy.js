// The copy button of a block copies the box "Run this first" with it, so that what is pasted runs alone.
// Of an example with prompts, it copies the code without prompts and without what is printed.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-clipboard-target]");
  const block = button && document.querySelector(button.dataset.clipboardTarget);
  if (!block) return;
  if (block.closest(".language-pycon")) {
    const lines = block.textContent.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
    button.dataset.clipboardText = lines.map((line) => line.slice(4)).join("\n");
  }
  const setup = document.querySelector(".md-content details summary");
  if (!setup || setup.textContent.trim() !== "Run this first") return;
  const first = setup.parentElement.querySelector("code");
  if (block !== first && block.closest(".language-python")) {
    button.dataset.clipboardText = `${first.textContent.trimEnd()}\n\n${block.textContent}`;
  }
}, true);
