//! The program `coffer-code`; see the library.

fn main() -> std::process::ExitCode {
    coffer_code::main()
}
