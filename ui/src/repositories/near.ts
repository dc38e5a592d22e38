// Whether an element is near what is seen. Far ones are left out of the page and keep their height.
import { useCallback, useState } from "react";

/** `margin` is how far from what is seen is still near, in pixels above and below. */
export function useNear(margin: number) {
  const [near, setNear] = useState(false);
  const ref = useCallback(
    (box: HTMLElement | null) => {
      if (box === null) return;
      const watch = new IntersectionObserver(([seen]) => setNear(seen?.isIntersecting === true), {
        rootMargin: `${margin}px 0px`,
      });
      watch.observe(box);
      return () => watch.disconnect();
    },
    [margin],
  );
  return { ref, near };
}
