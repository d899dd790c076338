/** Entry of the page. */
import { render } from "preact";
import { App } from "./app";

const place = document.getElementById("page");
if (place) {
  place.replaceChildren();
  render(<App />, place);
}
