// Boxes that scroll can be reached by the keyboard, links of thumbnails have a name, and headings of the side bar a level.
addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".table-wrapper, .output_html, pre"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const link of document.querySelectorAll(".sphx-glr-thumbcontainer a"))
    link.setAttribute("aria-label", link.textContent);
  for (const heading of document.querySelectorAll(".caption[role=heading]"))
    heading.setAttribute("aria-level", "2");
});
