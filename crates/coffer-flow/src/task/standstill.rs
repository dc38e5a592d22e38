//! An attempt that waits for a person.
//!
//! ```text
//! ask ─ [soon ─ rest] ─ answer ─ settle ─ [wake ⟲ room] ─ hear
//! ```
//!
//! The agent's turn has ended, so nothing runs that could time out, and nothing is lost if a server, the node or the
//! host restarts. The run is parked and holds no slot; the sandbox keeps its files alone. The question, its one answer and
//! its time are in the store; each step may be repeated.

use std::time::Duration;

use coffer_core::{Answer, Millis, Question, SandboxId, StepCode};
use coffer_store::{NewQuestion, answer_signal};

use super::workshop::{Brief, Halt, Settled, Workshop};
use super::{LONG, TaskKind};
use crate::{Run, Start, Stop};

/// How long the sandbox of an interrupted agent stays as it is, with the programs in it: a person who interrupts is there.
const SOON: Duration = Duration::from_secs(600);
/// How often a sandbox that rests is asked to work again if there is no room, and the pause in between.
const WAKES: i64 = 10;
const ROOM_PAUSE: Duration = Duration::from_secs(3600);

fn millis(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

impl<W: Workshop + ?Sized> TaskKind<W> {
    /// Waits until a person says how the attempt goes on after the turn `number`, or until the time for that is over.
    pub(super) async fn stand_still(
        &self,
        run: &mut Run,
        brief: &Brief,
        sandbox: SandboxId,
        number: i64,
        halt: &Halt,
    ) -> Result<Settled, Stop> {
        let clock = run.settings.clock.clone();
        let shop = &*self.workshop;
        let question = halt.question();
        let ask = |start: Start| {
            let now = clock.now();
            async move {
                let (spent_nanos, budget_nanos, message) = match halt {
                    Halt::Budget { spent_nanos, budget_nanos, message, .. } => {
                        (*spent_nanos, *budget_nanos, message.clone())
                    }
                    Halt::Interrupted { .. } => (
                        None,
                        None,
                        "Interrupted: the agent has stopped and waits for what you say next".to_string(),
                    ),
                };
                let until_ms = now.saturating_add(millis(self.answer_within));
                let new =
                    NewQuestion { number, kind: question, message, spent_nanos, budget_nanos, until_ms };
                let asked = self.store.ask_person(start.run, start.fence, new).await?;
                Ok((asked.asked_ms, asked.until_ms))
            }
        };
        let (asked_ms, until_ms): (Millis, Millis) =
            run.step(format!("ask-{number}")).stays().run(ask).await?;
        let signal = answer_signal(number);
        let mut answered = false;
        if question == Question::Interrupted {
            let soon_ms = asked_ms.saturating_add(millis(SOON)).min(until_ms);
            answered = run.wait_for(&format!("soon-{number}"), &signal, soon_ms).await?.is_some();
        }
        if !answered {
            // Its sandbox has no deadline while it rests.
            run.step(format!("rest-{number}"))
                .nothing_to_undo()
                .within(LONG)
                .run(|_| shop.rest(brief, sandbox))
                .await?;
            run.wait_for(&format!("answer-{number}"), &signal, until_ms).await?;
        }
        let settled: Settled = run
            .step(format!("settle-{number}"))
            .stays()
            .run(|start: Start| async move {
                let question = self.store.settle_question(start.run, start.fence, number).await?;
                Ok(Settled {
                    answer: question.answer.unwrap_or(Answer::Unanswered),
                    budget_nanos: question.new_budget_nanos,
                    by: question.answered_by,
                })
            })
            .await?;
        self.wake(run, brief, sandbox, number).await?;
        Ok(settled)
    }

    /// Lets the sandbox work again; waits for room, as long as it takes within bounds, because its files are the work.
    async fn wake(&self, run: &mut Run, brief: &Brief, sandbox: SandboxId, number: i64) -> Result<(), Stop> {
        let shop = &*self.workshop;
        for again in 1..=WAKES {
            let name = if again == 1 { format!("wake-{number}") } else { format!("wake-{number}-{again}") };
            let work = |_: Start| async move {
                match shop.wake(brief, sandbox).await {
                    Ok(()) => Ok(None),
                    Err(error) if error.code == StepCode::NoRoom => Ok(Some(error.message)),
                    Err(error) => Err(error),
                }
            };
            let full: Option<String> = run.step(name).nothing_to_undo().within(LONG).run(work).await?;
            let Some(why) = full else { return Ok(()) };
            if again == WAKES {
                return Err(Stop::failed(StepCode::NoRoom, why));
            }
            run.sleep(&format!("room-{number}-{again}"), ROOM_PAUSE).await?;
        }
        Ok(())
    }
}
