// An amount of memory or disk: a number and its unit, empty for the default.
import { useState } from "react";
import { SelectField, TextField } from "./fields";
import { asSize, toMib, type Size } from "./size";

interface Props {
  label: string;
  /** In MiB; undefined is the default. */
  value: number | undefined;
  onChange: (mib: number | undefined) => void;
  placeholder?: string;
  hint?: string;
  least?: number;
  most?: number;
}

export function SizeField({ label, value, onChange, placeholder, hint, least = 1, most }: Props) {
  const [typed, setTyped] = useState<Size>(() => asSize(value));
  // What was typed stays as it was typed, unless the value was set from elsewhere.
  const size = toMib(typed) === value ? typed : asSize(value);
  const change = (next: Size) => {
    setTyped(next);
    onChange(toMib(next));
  };
  const factor = size.unit === "GiB" ? 1024 : 1;
  return (
    <div className="flex items-start gap-2">
      <div className="min-w-0 flex-1">
        <TextField
          label={label}
          type="number"
          inputMode="decimal"
          min={least / factor}
          max={most === undefined ? undefined : most / factor}
          step="any"
          placeholder={placeholder}
          hint={hint}
          value={size.amount}
          onChange={(event) => change({ ...size, amount: event.target.value })}
        />
      </div>
      <div className="w-22 shrink-0 pt-6">
        <SelectField
          label={`Unit of ${label.toLowerCase()}`}
          hideLabel
          value={size.unit}
          onChange={(event) => change({ ...size, unit: event.target.value as Size["unit"] })}
        >
          <option>MiB</option>
          <option>GiB</option>
        </SelectField>
      </div>
    </div>
  );
}
