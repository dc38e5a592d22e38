// Secrets of the project that commands get by name. Their values are in no layer and no log.
import { useQuery } from "@tanstack/react-query";
import { KeyRound } from "lucide-react";
import { api, take } from "../api/client";
import { may } from "../api/session";
import { Button } from "../ui/Button";
import { TextField } from "../ui/fields";

const MOST_OFFERED = 20;

export function SecretNames({ value, onChange }: { value: string; onChange: (names: string) => void }) {
  const secrets = useQuery({
    queryKey: ["secrets"],
    queryFn: () => take(api.GET("/api/v1/secrets")),
    enabled: may("admin"),
  });
  const chosen = value.split(/[\s,]+/).filter(Boolean);
  const offered = (secrets.data?.items ?? []).map(({ name }) => name).filter((name) => !chosen.includes(name));
  return (
    <div className="space-y-2">
      <TextField
        label="Secrets"
        className="font-mono"
        placeholder="NPM_TOKEN"
        value={value}
        onChange={(event) => onChange(event.target.value)}
        hint="Names of the project's secrets, separated by spaces. Every RUN has them as variables of these names, only while it runs; they are not in the template."
      />
      {offered.length > 0 && (
        <div className="flex flex-wrap gap-2">
          {offered.slice(0, MOST_OFFERED).map((name) => (
            <Button
              key={name}
              onClick={() => onChange([...chosen, name].join(" "))}
              icon={<KeyRound aria-hidden className="size-4" />}
            >
              {name}
            </Button>
          ))}
        </div>
      )}
    </div>
  );
}
