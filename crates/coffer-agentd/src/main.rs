//! agentd; the library of this name has it all.

fn main() -> std::process::ExitCode {
    coffer_agentd::main()
}
