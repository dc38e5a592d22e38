//! The agentd binary; all its code is in the library of this name.

fn main() -> std::process::ExitCode {
    coffer_agentd::main()
}
