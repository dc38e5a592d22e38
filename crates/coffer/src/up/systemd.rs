//! Notifies systemd, if it started `up`: ready, alive, and stopping.

use sd_notify::NotifyState;
use tokio_util::task::AbortOnDropHandle;

/// Reports readiness, and from then on the watchdog's keep-alive as often as the unit asks.
#[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
pub(super) fn ready(status: &str) -> Option<AbortOnDropHandle<()>> {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    let every = sd_notify::watchdog_enabled()? / 2;
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            tell(&[NotifyState::Watchdog]);
        }
    })))
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Does nothing without systemd.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("could not notify systemd: {error}");
    }
}
