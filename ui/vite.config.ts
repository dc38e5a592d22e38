import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// COFFER_URL names a running server for `npx vite`.
const server = process.env.COFFER_URL ?? "http://127.0.0.1:3000";
const proxied = { target: server, ws: true };

export default defineConfig({
  base: "/ui/",
  plugins: [react(), tailwindcss()],
  build: {
    target: "es2022",
    sourcemap: false,
    // Inlined files would be data: URLs, which the content security policy does not allow for scripts and fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 800,
  },
  // A worker loads its languages one by one, as a page does. Import maps are not for workers, so their files are apart.
  worker: {
    format: "es",
    rollupOptions: {
      output: {
        entryFileNames: "assets/worker/[name]-[hash].js",
        chunkFileNames: "assets/worker/[name]-[hash].js",
      },
    },
  },
  server: {
    proxy: {
      "/api": proxied,
      "/sandboxes": proxied,
      "/metrics": proxied,
      "/process.Process": proxied,
    },
  },
});
