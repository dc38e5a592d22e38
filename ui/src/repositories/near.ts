// Whether an element is near what is seen. Far ones are left out of the page and keep their height.
import { useCallback, useState } from "react";

/** `margin` is how far from what is seen is still near, in pixels above and below. */
export function useNear(margin: number) {
  const [near, setNear] = useState(false);
  const ref = useCallback(
    (box: HTMLElement | null) => {
      if (box === null) return;
      // A busy page is told of several changes at once, the last of which is how it is.
      const watch = new IntersectionObserver((seen) => setNear(seen.at(-1)?.isIntersecting === true), {
        rootMargin: `${margin}px 0px`,
        // Pages scroll inside the window, and `rootMargin` is about the window alone.
        scrollMargin: `${margin}px 0px`,
      } as IntersectionObserverInit);
      watch.observe(box);
      return () => watch.disconnect();
    },
    [margin],
  );
  return { ref, near };
}
