// Before anything is drawn: a page that is light for a moment hurts in the dark. CSP forbids inline scripts.
try {
  const choice = localStorage.getItem("coffer.theme");
  const dark = choice === "dark" || (choice !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.toggle("dark", dark);
} catch {
  // A browser that keeps nothing shows the light theme.
}
