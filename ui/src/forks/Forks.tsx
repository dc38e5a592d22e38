import { useState } from "react";
import { Link } from "@tanstack/react-router";
import { GitFork, Plus } from "lucide-react";
import { may } from "../api/session";
import { Badge } from "../ui/Badge";
import { Button } from "../ui/Button";
import { Empty, Loaded } from "../ui/feedback";
import { plainText } from "../ui/format";
import { Card, Cell, Page, Table } from "../ui/layout";
import { Ago } from "../ui/time";
import { STATE_TONES, toneOf, useCompetitions, wordOf, type Competition } from "./competitions";
import { NewCompetition } from "./NewCompetition";

function whoWon(competition: Competition): string {
  const winner = competition.entries.find((entry) => entry.number === competition.winner);
  if (winner !== undefined) return plainText(winner.label);
  return competition.state === "waiting" ? "pick one" : "–";
}

export function Forks() {
  const query = useCompetitions();
  const [making, setMaking] = useState(false);
  const begin = (
    <Button
      tone="primary"
      disabled={!may("write")}
      onClick={() => setMaking(true)}
      icon={<Plus aria-hidden className="size-4" />}
    >
      Let agents compete
    </Button>
  );
  return (
    <Page title="Forks" actions={begin}>
      <Card>
        <Loaded query={query}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty icon={<GitFork aria-hidden className="size-7" />} title="No competitions yet">
                Give one task to several agents, models or prompts at once. Each works in a fork of one prepared
                sandbox; the results are checked, ranked and compared, and the winner becomes a pull request.
              </Empty>
            ) : (
              <Table label="Competitions" head={["Title", "State", "Forks", "Winner", "Started"]}>
                {items.map((competition) => (
                  <tr key={competition.id}>
                    <Cell className="min-w-48">
                      <Link
                        to="/forks/$fork"
                        params={{ fork: competition.id }}
                        className="font-medium text-accent underline"
                      >
                        {plainText(competition.title)}
                      </Link>
                      {competition.repository && (
                        <p className="text-xs text-dim">{plainText(competition.repository)}</p>
                      )}
                    </Cell>
                    <Cell>
                      <Badge tone={STATE_TONES[competition.state]}>{wordOf(competition.state)}</Badge>
                    </Cell>
                    <Cell>
                      <ul className="flex flex-wrap gap-1" aria-label="Forks">
                        {competition.entries.map((entry) => (
                          <li key={entry.number}>
                            <Badge tone={toneOf(entry)}>{plainText(entry.label)}</Badge>
                          </li>
                        ))}
                      </ul>
                    </Cell>
                    <Cell>{whoWon(competition)}</Cell>
                    <Cell className="whitespace-nowrap text-dim">
                      <Ago at={competition.created_at} />
                    </Cell>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Card>
      {making && <NewCompetition onClose={() => setMaking(false)} />}
    </Page>
  );
}
