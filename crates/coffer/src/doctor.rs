//! `coffer doctor`: looks for what keeps an installation from working, and says the line that fixes it.
//!
//! Every check is a function that returns [`Finding`]s and changes nothing. With `--fix` the orphans that
//! [`orphans`] found are removed, and nothing else.

mod certificate;
mod finding;
mod host;
mod orphans;
mod pool;
mod reach;
mod sandboxes;
mod storage;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::config::{self, Flags, Settings, Sources};
use crate::data_dir::DataDir;
use crate::printer;
use finding::{Finding, Status, Summary};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Remove what dead installations left behind: cgroups, loop devices and files that nothing owns
    #[arg(long)]
    fix: bool,
    /// Leave out what takes more than a moment: the trial sandbox, name servers, mirrors and registries
    #[arg(long)]
    quick: bool,
    /// How the findings look
    #[arg(long, short, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl Doctor {
    /// Fails if a check does, so that scripts can ask.
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<ExitCode> {
        let mut findings = Vec::new();
        let settings = match config::resolve(sources, &self.flags) {
            Ok(resolved) => {
                findings.push(Finding::ok("settings", "read and consistent"));
                findings.extend(resolved.doubts.iter().map(|doubt| {
                    Finding::warn("settings", doubt)
                        .fix("correct or remove it; `coffer config show` lists all")
                }));
                resolved.settings
            }
            Err(error) => {
                let fix = printer::hint_of(&error)
                    .unwrap_or("correct it; docs/configuration.md lists every setting");
                findings.push(
                    Finding::fail("settings", format!("{error:#}"))
                        .matters("`coffer up` does not start; the checks below use the defaults")
                        .fix(fix),
                );
                Settings::default()
            }
        };
        let running = is_running(&settings);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        findings.extend(host::check(&host::Machine::this()));
        findings.extend(storage::check(&settings));
        findings.extend(certificate::check(&settings));
        findings.extend(runtime.block_on(storage::check_database(&settings)));
        findings.extend(runtime.block_on(reach::check(&settings, running)));
        if !self.quick {
            findings.extend(runtime.block_on(reach::check_names_and_mirrors(&settings)));
            findings.extend(match findings[0].status {
                Status::Ok => sandboxes::check(&settings, running, &runtime, sources, &self.flags),
                _ => vec![Finding::skipped("sandboxes", "the settings have to be right first")],
            });
        }
        findings.extend(orphans::check(&settings, self.fix));
        let summary = Summary::of(&findings);
        match self.output {
            Output::Text => printer::line(finding::text(&findings).trim_end()),
            Output::Json => {
                printer::line(serde_json::to_string_pretty(&finding::Report { summary, findings })?)
            }
        }
        Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Whether a `coffer up` holds the data directory now.
fn is_running(settings: &Settings) -> bool {
    // Opening would create it.
    settings.data_dir.is_dir() && DataDir::open(&settings.data_dir).is_ok_and(|dir| dir.hold().is_err())
}

/// The findings that `coffer up` should mention at its start, in one line.
pub(crate) fn quick_line(settings: &Settings) -> Option<String> {
    let mut findings = host::check_without_programs();
    findings.extend(storage::check(settings));
    findings.extend(certificate::check(settings));
    findings.extend(orphans::check(settings, false));
    let worth = findings.iter().filter(|finding| finding.status >= Status::Warn);
    let names: Vec<_> = worth.map(|finding| format!("{}: {}", finding.check, finding.found)).collect();
    (!names.is_empty()).then(|| format!("{}; `coffer doctor` explains it", names.join("; ")))
}
