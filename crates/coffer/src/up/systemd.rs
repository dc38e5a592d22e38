//! What systemd is told, where it started `up`: when it is ready, that it lives, and that it stops.

use sd_notify::NotifyState;
use tokio_util::task::AbortOnDropHandle;

/// Says that requests are answered, and from then on that the supervisor lives, as often as the unit asks.
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

/// Does nothing where there is no systemd.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("could not tell systemd: {error}");
    }
}
