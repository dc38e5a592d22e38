import { clsx, type ClassValue } from "clsx";
import { twMerge } from "tailwind-merge";

/** Joins class names; later ones win over earlier ones of the same kind. */
export function classes(...values: ClassValue[]): string {
  return twMerge(clsx(values));
}
