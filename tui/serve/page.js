// The websocket is beside this page, whatever name, port or proxy it was asked by.
window.addEventListener("DOMContentLoaded", () => {
  const terminal = document.querySelector("#terminal"), page = new URL(window.location.href);
  const size = parseInt(page.searchParams.get("fontsize")) || 15;
  terminal.dataset.sessionWebsocketUrl = new URL("ws", page).href.replace(/^http/, "ws");
  terminal.dataset.fontSize = Math.min(Math.max(size, 6), 48);
});
// Keys go to the dashboard at once, without a click into it first.
window.addEventListener("load", () => {
  document.querySelector(".xterm-helper-textarea")?.focus();
});
