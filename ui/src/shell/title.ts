// The title of the tab: which page, and how often an agent asked for somebody while nobody looked.
import { useEffect } from "react";

const NAME = "Cofferdam";
let page = "";
let waiting = 0;

function show() {
  document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${page === "" ? "" : `${page} · `}${NAME}`;
}

export function useTitle(name: string) {
  useEffect(() => {
    page = name;
    show();
    return () => {
      page = "";
      show();
    };
  }, [name]);
}

export function setWaiting(count: number) {
  waiting = count;
  show();
}
