/*
 * Puts the person's choice of light or dark on the page before it is first painted: a plain script, which the page
 * waits for, as a module would come too late. Without a choice the system's preference holds.
 */
{
  /** One for each preference of the system, light first. @type {NodeListOf<HTMLMetaElement>} */
  const colours = document.querySelectorAll("meta[name=theme-color]");
  const [light, dark] = [...colours].map(({ content }) => content);

  const apply = () => {
    const chosen = localStorage.getItem("turnwise.theme");
    const known = chosen === "light" || chosen === "dark";
    if (known) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    colours[0].content = chosen === "dark" ? dark : light;
    colours[1].content = chosen === "light" ? light : dark;
  };

  apply();
  addEventListener("turnwise.choice", apply);
  addEventListener("storage", apply); // chosen in another tab
}
