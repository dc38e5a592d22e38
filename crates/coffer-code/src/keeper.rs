//! Keeps the service running: starts it, waits for its end, starts it again.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The pause before the next start doubles with every start that failed soon.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The programs of E2B's interpreter that the service stands for. Scripts that look for them, or kill them to start over,
/// find it by these words, which it ignores.
const STANDS_FOR: [&str; 2] = ["uvicorn main:app", "jupyter-server"];
/// A service that ran this long did not fail to start.
const SOUND: Duration = Duration::from_secs(10);

#[expect(clippy::disallowed_methods, reason = "the keeper has one thread, which only waits")]
pub(crate) fn keep() -> io::Result<()> {
    let program = std::env::current_exe()?;
    let mut pause = FIRST_PAUSE;
    loop {
        let since = Instant::now();
        let ended = Command::new(&program).arg("serve").args(STANDS_FOR).stdin(Stdio::null()).status()?;
        pause = if since.elapsed() > SOUND { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        eprintln!("coffer-code: the service ended ({ended}) and is started again");
        std::thread::sleep(pause);
    }
}
