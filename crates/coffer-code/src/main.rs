//! The program `coffer-code`; see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    coffer_code::main()
}
