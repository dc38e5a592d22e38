export interface Size {
  amount: string;
  unit: "MiB" | "GiB";
}

/** A number of MiB as people write it; whole GiB as GiB. */
export function asSize(mib: number | undefined): Size {
  if (mib === undefined) return { amount: "", unit: "GiB" };
  return mib % 512 === 0 ? { amount: String(mib / 1024), unit: "GiB" } : { amount: String(mib), unit: "MiB" };
}

/** In MiB, rounded; undefined if nothing was typed. */
export function toMib({ amount, unit }: Size): number | undefined {
  const number = Number(amount);
  if (amount.trim() === "" || !Number.isFinite(number)) return undefined;
  return Math.max(1, Math.round(number * (unit === "GiB" ? 1024 : 1)));
}
