// A click on a diagram shows it large, around the point that was clicked, and the next one small again.
document.addEventListener("click", (event) => {
  const diagram = event.target.closest(".mermaid");
  if (!diagram) return;
  const box = diagram.getBoundingClientRect();
  const across = (event.clientX - box.left) / box.width;
  const large = diagram.classList.toggle("large");
  const article = diagram.closest("article");
  article.scrollLeft = large ? across * diagram.offsetWidth - article.clientWidth / 2 : 0;
});
