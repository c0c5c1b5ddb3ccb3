// The copy button of a block copies the box "Run this first" with it, so that what is pasted runs alone.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-clipboard-target]");
  const setup = document.querySelector(".md-content details summary");
  if (!button || !setup || setup.textContent.trim() !== "Run this first") return;
  const first = setup.parentElement.querySelector("code");
  const block = document.querySelector(button.dataset.clipboardTarget);
  if (block && block !== first && block.closest(".language-python")) {
    button.dataset.clipboardText = `${first.textContent.trimEnd()}\n\n${block.textContent}`;
  }
}, true);
