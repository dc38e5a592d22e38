//! Locks that outlive the panic of a holder.

use std::fmt;
use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// [`std::sync::Mutex`] without poisoning. A panic in one request must not cause one in every later request
/// that needs the same lock, so there is no second outcome to handle. In return, hold it only for a few lines
/// that cannot leave its data half changed, and never over an `await`.
#[derive(Default)]
#[expect(clippy::disallowed_types, reason = "the type to use instead")]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    #[expect(clippy::disallowed_types, reason = "see the type")]
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, unless another thread holds it right now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// [`std::sync::RwLock`] without poison, with the same duty for its holders as [`Mutex`].
#[derive(Default)]
#[expect(clippy::disallowed_types, reason = "the type to use instead")]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    #[expect(clippy::disallowed_types, reason = "see the type")]
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until there is no writer.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is neither a writer nor a reader.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_one_holder_is_not_that_of_the_next() {
        let shared = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut held = shared.lock();
                *held = 2;
                panic!("while it is held");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*shared.lock(), 2);
        let held = shared.lock();
        assert!(shared.try_lock().is_none());
        drop(held);
        assert_eq!(shared.try_lock().map(|held| *held), Some(2));
        assert_eq!(shared.into_inner(), 2);
    }

    #[test]
    fn a_panic_of_one_writer_is_not_that_of_readers() {
        let shared = RwLock::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut held = shared.write();
                *held = 2;
                panic!("while it is held");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*shared.read(), 2);
        *shared.write() = 3;
        assert_eq!(*shared.read(), 3);
    }
}
