//! Formats how a process ended, as clients expect it.

use coffer_wire::envd::process::process_event::EndEvent;

/// The last event of a process, from its wait status: `exit status N`, or `signal: <name>` with code -1.
pub(super) fn end_event(status: i32) -> EndEvent {
    if libc::WIFSIGNALED(status) {
        let mut text = format!("signal: {}", signal_name(libc::WTERMSIG(status)));
        if libc::WCOREDUMP(status) {
            text.push_str(" (core dumped)");
        }
        return EndEvent { exit_code: -1, exited: false, status: text.clone(), error: Some(text) };
    }
    let exit_code = libc::WEXITSTATUS(status);
    let text = format!("exit status {exit_code}");
    EndEvent { exit_code, exited: true, error: (exit_code != 0).then(|| text.clone()), status: text }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGXCPU => "cpu time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGSYS => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_read_as_clients_expect() {
        assert_eq!(
            end_event(0),
            EndEvent { exit_code: 0, exited: true, status: "exit status 0".into(), error: None }
        );
        assert_eq!(
            end_event(3 << 8),
            EndEvent {
                exit_code: 3,
                exited: true,
                status: "exit status 3".into(),
                error: Some("exit status 3".into())
            }
        );
        assert_eq!(
            end_event(9),
            EndEvent {
                exit_code: -1,
                exited: false,
                status: "signal: killed".into(),
                error: Some("signal: killed".into())
            }
        );
        assert_eq!(end_event(11 | 0x80).status, "signal: segmentation fault (core dumped)");
    }
}
