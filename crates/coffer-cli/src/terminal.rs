//! The terminal of this program: raw mode, its size, prompts without echo.

#[cfg(unix)]
pub(crate) use unix::{Raw, Resized, prompt_secret, size, stdin_is_null};

#[cfg(not(unix))]
pub(crate) use other::{Raw, Resized, prompt_secret, size, stdin_is_null};

#[cfg(unix)]
mod unix {
    use std::io::{BufRead as _, Write as _};

    use coffer_client::TerminalSize;
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Keys go to the sandbox as they are; dropped, the terminal is as before.
    #[derive(Debug)]
    pub(crate) struct Raw(Termios);

    impl Raw {
        pub(crate) fn enter() -> std::io::Result<Self> {
            let stdin = std::io::stdin();
            let before = tcgetattr(&stdin)?;
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(&stdin, OptionalActions::Now, &raw)?;
            Ok(Self(before))
        }
    }

    impl Drop for Raw {
        fn drop(&mut self) {
            let _best_effort = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
        }
    }

    /// Whether there is nothing to read, as in cron: its end need not be sent in a request of its own.
    pub(crate) fn stdin_is_null() -> bool {
        let found = rustix::fs::fstat(std::io::stdin()).ok().zip(rustix::fs::stat("/dev/null").ok());
        found.is_some_and(|(stdin, null)| (stdin.st_rdev, stdin.st_mode) == (null.st_rdev, null.st_mode))
    }

    pub(crate) fn size() -> TerminalSize {
        let found = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        found.map_or(TerminalSize { columns: 80, rows: 24 }, |size| TerminalSize {
            columns: size.ws_col,
            rows: size.ws_row,
        })
    }

    /// Tells when the size changes.
    #[derive(Debug)]
    pub(crate) struct Resized(Signal);

    impl Resized {
        pub(crate) fn watch() -> std::io::Result<Self> {
            signal(SignalKind::window_change()).map(Self)
        }

        pub(crate) async fn next(&mut self) {
            self.0.recv().await;
        }
    }

    /// Asks for a line without showing it.
    pub(crate) fn prompt_secret(question: &str) -> std::io::Result<String> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        eprint!("{question}: ");
        std::io::stderr().flush()?;
        tcsetattr(&stdin, OptionalActions::Flush, &quiet)?;
        let mut line = String::new();
        let read = stdin.lock().read_line(&mut line);
        tcsetattr(&stdin, OptionalActions::Drain, &before)?;
        eprintln!();
        read.map(|_| line.trim_end_matches(['\r', '\n']).to_string())
    }
}

#[cfg(not(unix))]
mod other {
    use coffer_client::TerminalSize;

    /// Without raw mode here: keys are sent line by line.
    #[derive(Debug)]
    pub(crate) struct Raw;

    impl Raw {
        #[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
        pub(crate) fn enter() -> std::io::Result<Self> {
            Ok(Self)
        }
    }

    pub(crate) fn stdin_is_null() -> bool {
        false
    }

    pub(crate) fn size() -> TerminalSize {
        TerminalSize { columns: 80, rows: 24 }
    }

    #[derive(Debug)]
    pub(crate) struct Resized;

    impl Resized {
        #[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
        pub(crate) fn watch() -> std::io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) {
            std::future::pending().await
        }
    }

    /// Echo cannot be switched off here, so a secret must come from a pipe.
    pub(crate) fn prompt_secret(_: &str) -> std::io::Result<String> {
        Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "no prompt without echo here: pipe the value in",
        ))
    }
}
