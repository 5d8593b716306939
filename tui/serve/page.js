// Keys go to the dashboard at once, without a click into it first.
window.addEventListener("load", () => {
  document.querySelector(".xterm-helper-textarea")?.focus();
});
