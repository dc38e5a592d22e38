import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import { defineConfig, globalIgnores } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig(
  globalIgnores(["dist", "src/api/schema.d.ts"]),
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  { files: ["**/*.{js,mjs}"], extends: [js.configs.recommended] },
  {
    files: ["**/*.{ts,tsx}"],
    extends: [js.configs.recommended, ts.configs.recommendedTypeChecked],
    plugins: { "react-hooks": hooks },
    languageOptions: { parserOptions: { projectService: { allowDefaultProject: ["vite.config.ts"] } } },
    rules: {
      // The plugin's other rules are for the React Compiler, which the build does not use.
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "error",
      // Names that begin with _ are left out on purpose, as in `{ secret: _secret, ...rest }`.
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_", argsIgnorePattern: "^_" }],
      // The router navigates by throwing what `redirect()` and `notFound()` return.
      "@typescript-eslint/only-throw-error": [
        "error",
        { allow: [{ from: "package", package: "@tanstack/router-core", name: ["Redirect", "NotFoundError"] }] },
      ],
    },
  },
  { files: ["*.mjs"], languageOptions: { globals: { console: "readonly", process: "readonly", URL: "readonly" } } },
  {
    files: ["public/*.js"],
    languageOptions: { globals: { document: "readonly", localStorage: "readonly", matchMedia: "readonly" } },
  },
);
