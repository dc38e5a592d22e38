//! Settings that have their own flag. All others are set by `--set`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Where settings come from; on every command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Sources {
    /// The configuration file, instead of `coffer.toml` in the data directory or in /etc/coffer
    #[arg(long, env = "COFFER_CONFIG", global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Any setting, such as `--set sandbox.cpus=4`; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
}

/// A value that was given on the command line.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) path: String,
    pub(super) flag: String,
    pub(super) value: String,
}

/// Defines the flags, and which setting each of them sets.
macro_rules! flags {
    ($($(#[$attribute:meta])* $field:ident $path:literal $value:literal;)*) => {
        /// Flags for settings. Their values are checked with the rest of the settings, not by clap.
        #[derive(Debug, Clone, Default, Args)]
        pub(crate) struct Flags {
            $($(#[$attribute])*
            #[arg(long, value_name = $value, allow_hyphen_values = true)]
            $field: Option<String>,)*
            /// Do not build the template `base` in the background when it is missing or out of date
            #[arg(long)]
            no_build: bool,
            /// Give sandboxes no network
            #[arg(long)]
            no_network: bool,
        }

        /// The flag of a setting, without dashes.
        pub(super) const NAMES: &[(&str, &str)] = &[
            $(($path, stringify!($field)),)*
            ("template.build", "no-build"),
            ("network.enabled", "no-network"),
        ];

        impl Flags {
            pub(super) fn given(&self) -> Vec<Given> {
                let mut given = Vec::new();
                $(if let Some(value) = &self.$field {
                    given.push(Given {
                        path: $path.into(),
                        flag: name(stringify!($field)),
                        value: value.clone(),
                    });
                })*
                for (path, flag, yes) in [
                    ("template.build", "--no-build", self.no_build),
                    ("network.enabled", "--no-network", self.no_network),
                ] {
                    if yes {
                        given.push(Given { path: path.into(), flag: flag.into(), value: "false".into() });
                    }
                }
                given
            }
        }
    };
}

/// The same settings as arguments, for a process of our own.
pub(crate) fn arguments(sources: &Sources, flags: &Flags) -> Vec<OsString> {
    let mut arguments = Vec::new();
    if let Some(file) = &sources.config {
        arguments.extend(["--config".into(), file.into()]);
    }
    let flags = flags.given().into_iter().map(|Given { path, value, .. }| format!("{path}={value}"));
    for setting in sources.set.iter().cloned().chain(flags) {
        arguments.extend(["--set".into(), setting.into()]);
    }
    arguments
}

/// A field's name as its flag.
pub(super) fn name(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}

flags! {
    /// The address to serve on [default: 127.0.0.1:3000]
    listen "listen" "ADDRESS";
    /// The data directory [default: /var/lib/coffer]
    data_dir "data_dir" "DIR";
    /// A PostgreSQL URL instead of the embedded SQLite; in a file or COFFER_DATABASE_URL others cannot see it
    database_url "database.url" "URL";
    /// The directory of templates [default: /var/cache/coffer/templates]
    template_dir "template.dir" "DIR";
    /// How much disk to reserve for sandboxes; a quarter of the free space, from 2 to 64 GiB, by default
    pool_size "node.pool_size" "SIZE";
    /// How many sandboxes to keep ready at most, for creates that need not wait; 0 for none
    #[arg(hide_short_help = true)]
    warm_slots "node.warm_slots" "COUNT";
    /// Memory of the machine that sandboxes never get; an eighth, from 256 MiB to 2 GiB, by default
    #[arg(hide_short_help = true)]
    memory_reserve "node.memory_reserve" "SIZE";
    /// Nameservers for the names that sandboxes look up, instead of the machine's own; separated by commas
    nameserver "network.nameservers" "ADDRESS";
    /// The domain of sandbox addresses (`<port>-<id>.<domain>`), if one points at this server
    domain "domain" "DOMAIN";
    /// The longest timeout a sandbox may be given [default: 24h]
    max_timeout "sandbox.max_timeout" "DURATION";
    /// The longest a sandbox may live in all [default: 24h]
    max_lifetime "sandbox.max_lifetime" "DURATION";
    /// End sandboxes that nothing has used for this long
    idle_timeout "sandbox.idle_timeout" "DURATION";
    /// Processors of each sandbox [default: 2]
    sandbox_cpus "sandbox.cpus" "COUNT";
    /// Memory of each sandbox [default: 2GiB]
    sandbox_memory "sandbox.memory" "SIZE";
    /// Processes and threads of each sandbox [default: 4096]
    sandbox_processes "sandbox.processes" "COUNT";
    /// What each sandbox may write to its disk; 10 GiB by default, but at most a quarter of the pool
    sandbox_disk "sandbox.disk" "SIZE";
    /// What to log, as a filter such as `info` or `coffer_node=debug` [default: info]
    log "log.filter" "FILTER";
    /// How log lines look: text or json [default: text]
    log_format "log.format" "FORMAT";
}
