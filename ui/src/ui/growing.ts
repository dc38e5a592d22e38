import { useCallback, useState } from "react";

/** How many items of a long list to draw: more with every look at its end, which `end` marks. */
export function useGrowing(atOnce: number) {
  const [most, setMost] = useState(atOnce);
  const end = useCallback(
    (mark: HTMLElement | null) => {
      if (mark === null) return;
      const watch = new IntersectionObserver(
        (seen) => seen.some((one) => one.isIntersecting) && setMost((old) => old + atOnce),
        { rootMargin: "400px" },
      );
      watch.observe(mark);
      return () => watch.disconnect();
    },
    [atOnce],
  );
  return { most, end };
}
