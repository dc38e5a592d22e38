//! The life cycle of a sandbox on this node: its states, and what each request means in each of them.
//!
//! ```text
//!                      create
//!                        │
//!                        ▼      freeze
//!     ┌─── stop ───── running ──────────► frozen ──── stop ───┐
//!     │               ▲  ▲  │ ◄────────── │                   │
//!     ▼               │  │  │    thaw     │ hibernate         ▼
//!  stopped ── start ──┘  │  │             ▼                stopped
//!     ▲                  │  └─ hibernate ► hibernated
//!     │                start ◄──────────── │
//!     └─ where a cold start fails ◄────────┘
//!
//!  running, frozen, stopped, hibernated:  rollback ends in running, a snapshot leaves each as it was
//!  running, frozen:                       the first process ended by itself: dead, only a record is left
//!  all of them, dead too:                 destroy ends in gone
//! ```
//!
//! [`plan`] decides, without side effects, what to do; [`Life::after`] gives the resulting state. The owner
//! does it, and after a failure is in one of [`Life::fallbacks`]. The journal also has intermediate phases
//! ([`Phase`](crate::journal::Phase)), for a node that finds an interrupted step; here there are none,
//! because an owner does one thing at a time.

use coffer_core::{Boot, Memory, SnapshotId};

use crate::registry::Command;

/// The state of a sandbox, without its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Running,
    /// Its processes are frozen, in memory.
    Frozen,
    /// It has files and no processes.
    Stopped,
    /// Its processes are on disk.
    Hibernated,
    /// Its first process ended without a request. Only a record is left.
    Dead,
    /// Destroyed; its owner ends.
    Gone,
}

/// Whether this host can save the memory of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemorySupport {
    Present,
    Absent,
}

/// What an owner does for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Nothing: the sandbox is already in that state.
    Confirm,
    /// Nothing: it runs already; answers with its placement.
    ConfirmPlace,
    Freeze,
    Thaw,
    Stop,
    Boot,
    /// Discards the memory on disk and boots.
    BootCold,
    /// Restores the memory on disk.
    Wake,
    Hibernate,
    /// A frozen sandbox runs briefly, so that its agentd can close its connections.
    ThawAndHibernate,
    Snapshot(SnapshotId),
    SnapshotMemory(SnapshotId),
    /// As [`Action::ThawAndHibernate`], and frozen again afterwards.
    ThawAndSnapshotMemory(SnapshotId),
    RollBack(SnapshotId, Memory),
    SetNetwork,
    SetDefaults,
    Destroy,
}

/// Why an owner refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The state does not allow it.
    WrongState,
    /// It needs memory to be saved or restored, and this host cannot.
    NoMemorySupport,
}

/// The action for `command` in that state.
pub(super) fn plan(life: Life, command: &Command, support: MemorySupport) -> Result<Action, Refusal> {
    let has_files = matches!(life, Life::Running | Life::Frozen | Life::Stopped | Life::Hibernated);
    // A request that the state refuses anyway is refused for that reason, whatever the host supports.
    let with_memory = match support {
        MemorySupport::Absent if has_files => Err(Refusal::NoMemorySupport),
        MemorySupport::Absent | MemorySupport::Present => Ok(()),
    };
    let action = match (command, life) {
        (Command::Destroy, _) => Action::Destroy,
        (Command::Create(_), Life::Running | Life::Frozen) => Action::ConfirmPlace,
        (Command::Freeze, Life::Running) => Action::Freeze,
        (Command::Freeze, Life::Frozen) => Action::Confirm,
        (Command::Thaw, Life::Frozen) => Action::Thaw,
        (Command::Thaw | Command::Start(_), Life::Running) => Action::ConfirmPlace,
        (Command::Stop, Life::Running | Life::Frozen) => Action::Stop,
        (Command::Stop, Life::Stopped) => Action::Confirm,
        (Command::Start(_), Life::Stopped) => Action::Boot,
        (Command::Start(Boot::Cold), Life::Hibernated) => Action::BootCold,
        (Command::Start(Boot::AsPaused), Life::Hibernated) => with_memory.map(|()| Action::Wake)?,
        (Command::Hibernate, life) => {
            with_memory?;
            match life {
                Life::Running => Action::Hibernate,
                Life::Frozen => Action::ThawAndHibernate,
                Life::Hibernated => Action::Confirm,
                Life::Stopped | Life::Dead | Life::Gone => return Err(Refusal::WrongState),
            }
        }
        (&Command::Snapshot { snapshot, memory: Memory::With }, life) => {
            with_memory?;
            match life {
                Life::Running => Action::SnapshotMemory(snapshot),
                Life::Frozen => Action::ThawAndSnapshotMemory(snapshot),
                Life::Stopped | Life::Hibernated | Life::Dead | Life::Gone => {
                    return Err(Refusal::WrongState);
                }
            }
        }
        (&Command::Snapshot { snapshot, memory: Memory::Without }, _) if has_files => {
            Action::Snapshot(snapshot)
        }
        (&Command::Rollback { snapshot, memory }, _) if has_files => {
            if memory == Memory::With {
                with_memory?;
            }
            Action::RollBack(snapshot, memory)
        }
        (Command::SetNetwork(_), _) if has_files => Action::SetNetwork,
        (Command::SetDefaults(_), _) if has_files => Action::SetDefaults,
        _ => return Err(Refusal::WrongState),
    };
    Ok(action)
}

impl Life {
    /// The state once an action is done.
    pub(super) const fn after(self, action: Action) -> Self {
        match action {
            Action::Confirm
            | Action::ConfirmPlace
            | Action::Snapshot(_)
            | Action::SnapshotMemory(_)
            | Action::ThawAndSnapshotMemory(_)
            | Action::SetNetwork
            | Action::SetDefaults => self,
            Action::Freeze => Self::Frozen,
            Action::Thaw | Action::Boot | Action::BootCold | Action::Wake | Action::RollBack(..) => {
                Self::Running
            }
            Action::Stop => Self::Stopped,
            Action::Hibernate | Action::ThawAndHibernate => Self::Hibernated,
            Action::Destroy => Self::Gone,
        }
    }

    /// The states that a failed action may lead to besides [`after`](Self::after): mostly the previous one,
    /// or an intermediate one. Never one that claims more than exists.
    pub(super) const fn fallbacks(self, action: Action) -> &'static [Self] {
        match action {
            // A confirmation cannot fail; a sandbox whose processes ended is stopped or gone even if a later
            // step fails.
            Action::Confirm
            | Action::ConfirmPlace
            | Action::Stop
            | Action::Destroy
            | Action::SetNetwork
            | Action::SetDefaults => &[],
            Action::Freeze | Action::Hibernate | Action::SnapshotMemory(_) => &[Self::Running],
            Action::Thaw => &[Self::Frozen],
            // Frozen for it, and could not be thawed.
            Action::Snapshot(_) => match self {
                Self::Running => &[Self::Frozen],
                _ => &[],
            },
            Action::ThawAndHibernate | Action::ThawAndSnapshotMemory(_) => &[Self::Running, Self::Frozen],
            Action::Boot => &[Self::Stopped],
            Action::BootCold => &[Self::Hibernated, Self::Stopped],
            Action::Wake => &[Self::Hibernated],
            // Nothing was ended yet, or only its old files are left.
            Action::RollBack(..) => match self {
                Self::Frozen => &[Self::Frozen, Self::Stopped],
                Self::Hibernated => &[Self::Hibernated, Self::Stopped],
                _ => &[Self::Stopped],
            },
        }
    }

    /// Whether an action may have led from here to `next`.
    pub(super) fn may_become(self, action: Action, next: Self) -> bool {
        next == self.after(action) || self.fallbacks(action).contains(&next)
    }

    /// The name in messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Stopped => "stopped",
            Self::Hibernated => "hibernated",
            Self::Dead => "dead",
            Self::Gone => "gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use coffer_core::network::Policy;
    use coffer_core::{Limits, SandboxId};
    use coffer_wire::node::CreateSandbox;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const ALL: [Life; 6] =
        [Life::Running, Life::Frozen, Life::Stopped, Life::Hibernated, Life::Dead, Life::Gone];

    fn commands() -> Vec<Command> {
        let spec = CreateSandbox {
            sandbox: SandboxId::generate(),
            template: "base".into(),
            hostname: "x".into(),
            limits: Limits::default(),
            network: Policy::default(),
            snapshot: None,
            from_template: false,
            template_owner: None,
            memory: false,
            volumes: Vec::new(),
        };
        let snapshot = SnapshotId::generate();
        vec![
            Command::Create(Box::new(spec)),
            Command::Destroy,
            Command::Freeze,
            Command::Thaw,
            Command::Stop,
            Command::Start(Boot::AsPaused),
            Command::Start(Boot::Cold),
            Command::Hibernate,
            Command::Snapshot { snapshot, memory: Memory::With },
            Command::Snapshot { snapshot, memory: Memory::Without },
            Command::Rollback { snapshot, memory: Memory::With },
            Command::Rollback { snapshot, memory: Memory::Without },
            Command::SetNetwork(Box::default()),
            Command::SetDefaults(Box::new(coffer_core::TemplateDefaults {
                user: "root".into(),
                workdir: None,
                env: Default::default(),
                start: None,
            })),
        ]
    }

    /// Every edge of the diagram above, and no other.
    #[test]
    fn the_diagram_is_true() {
        use Life::{Dead, Frozen, Gone, Hibernated, Running, Stopped};
        let mut edges = Vec::new();
        for life in ALL {
            for command in commands() {
                let Ok(action) = plan(life, &command, MemorySupport::Present) else { continue };
                let next = life.after(action);
                if next != life && !edges.contains(&(life, command.verb(), next)) {
                    edges.push((life, command.verb(), next));
                }
            }
        }
        let expected = [
            (Running, "destroyed", Gone),
            (Running, "frozen", Frozen),
            (Running, "stopped", Stopped),
            (Running, "hibernated", Hibernated),
            (Frozen, "destroyed", Gone),
            (Frozen, "thawed", Running),
            (Frozen, "stopped", Stopped),
            (Frozen, "hibernated", Hibernated),
            (Frozen, "rolled back", Running),
            (Stopped, "destroyed", Gone),
            (Stopped, "started", Running),
            (Stopped, "rolled back", Running),
            (Hibernated, "destroyed", Gone),
            (Hibernated, "started", Running),
            (Hibernated, "rolled back", Running),
            (Dead, "destroyed", Gone),
        ];
        assert_eq!(edges, expected);
    }

    fn support() -> impl Strategy<Value = MemorySupport> {
        select(vec![MemorySupport::Present, MemorySupport::Absent])
    }

    proptest! {
        /// Whether requests succeed or fail: dead sandboxes stay dead, and a sandbox without processes gets
        /// them only by a start or a rollback.
        #[test]
        fn any_sequence_keeps_to_the_rules(
            steps in prop::collection::vec((select(commands()), any::<prop::sample::Index>()), 1..40),
            support in support(),
        ) {
            let mut life = Life::Running;
            for (command, outcome) in steps {
                let before = life;
                match plan(life, &command, support) {
                    Ok(action) => {
                        let mut outcomes = vec![life.after(action)];
                        outcomes.extend(life.fallbacks(action));
                        life = *outcome.get(&outcomes);
                        prop_assert!(before.may_become(action, life));
                    }
                    Err(refusal) => {
                        prop_assert!(command != Command::Destroy, "destroying is never refused");
                        if refusal == Refusal::NoMemorySupport {
                            prop_assert_eq!(support, MemorySupport::Absent);
                        }
                    }
                }
                if matches!(before, Life::Dead | Life::Gone) {
                    prop_assert!(life == before || life == Life::Gone);
                }
                let has_processes = |life| matches!(life, Life::Running | Life::Frozen);
                if !has_processes(before) && has_processes(life) {
                    prop_assert_eq!(life, Life::Running);
                    let is_start = matches!(command, Command::Start(_) | Command::Rollback { .. });
                    prop_assert!(is_start, "{:?}", command);
                }
                if life == Life::Hibernated && before != Life::Hibernated {
                    prop_assert!(support == MemorySupport::Present && command == Command::Hibernate);
                }
            }
        }

        /// A repeated request is confirmed: a server that missed an answer may ask twice.
        #[test]
        fn a_request_can_be_repeated(life in select(ALL.to_vec()), command in select(commands()), support in support()) {
            let Ok(action) = plan(life, &command, support) else { return Ok(()) };
            let next = life.after(action);
            let again = plan(next, &command, support);
            prop_assert!(again.is_ok(), "{:?} then {:?}", action, again);
            prop_assert_eq!(next.after(again.unwrap_or(action)), next);
        }
    }

    #[test]
    fn a_host_without_criu_refuses_only_what_needs_it() {
        for life in ALL {
            for command in commands() {
                let (with, without) = (
                    plan(life, &command, MemorySupport::Present),
                    plan(life, &command, MemorySupport::Absent),
                );
                let needs = matches!(
                    (&command, life),
                    (Command::Hibernate, _)
                        | (Command::Snapshot { memory: Memory::With, .. }, _)
                        | (Command::Rollback { memory: Memory::With, .. }, _)
                        | (Command::Start(Boot::AsPaused), Life::Hibernated)
                ) && !matches!(life, Life::Dead | Life::Gone);
                if needs {
                    assert_eq!(without, Err(Refusal::NoMemorySupport), "{life:?} {command:?}");
                } else {
                    assert_eq!(with, without, "{life:?} {command:?}");
                }
            }
        }
    }
}
