import "./style.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { ApiError } from "./api/client";
import { startLive } from "./api/live";
import { router } from "./router";

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // Events say when something changed, so what is here is not asked for again just because it is old.
      staleTime: 30_000,
      refetchOnWindowFocus: false,
      retry: (count, error) => count < 3 && error instanceof ApiError && (error.status === 0 || error.status >= 502),
      retryDelay: (count) => Math.min(4000, 300 * 2 ** count),
    },
  },
});

startLive(queries);

createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
