import { render } from "preact";
import { App } from "./app";

addEventListener("hashchange", () => location.reload()); // another code was opened in this tab
render(<App />, document.getElementById("page") as HTMLElement);
