//! The runtime's context while it is lent to a filter in Python. Calls that cannot wait use it with
//! the interpreter's lock, calls that may wait without.

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use filters::flow::Meta;
use filters::{Error, With};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::raised;

/// A context that may be used while a method of the filter runs.
pub struct Lent(Mutex<Pointer>);

/// The runtime's context, while it is lent to a filter; null at other times.
struct Pointer(*mut filters::Context);

// SAFETY: only used under the mutex, and only while the thread that has the context waits in the
// filter's own call.
unsafe impl Send for Pointer {}

impl Default for Lent {
    fn default() -> Lent {
        Lent(Mutex::new(Pointer(ptr::null_mut())))
    }
}

impl Lent {
    /// Lends a context for as long as `what` runs.
    pub fn lend<T>(&self, py: Python, context: &mut filters::Context, what: impl FnOnce() -> T) -> T {
        *self.lock() = Pointer(context);
        let result = what();
        // Waits, without the interpreter's lock, for a thread of the filter's own that still uses
        // the context.
        py.detach(|| *self.lock() = Pointer(ptr::null_mut()));
        result
    }

    fn lock(&self) -> MutexGuard<'_, Pointer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `what` with the context.
    pub fn with<T>(&self, what: impl FnOnce(&mut filters::Context) -> Result<T, Error>) -> Result<T, Gone> {
        Self::using(&mut self.lock(), what)
    }

    fn using<T>(
        lent: &mut MutexGuard<Pointer>,
        what: impl FnOnce(&mut filters::Context) -> Result<T, Error>,
    ) -> Result<T, Gone> {
        if lent.0.is_null() {
            return Err(Gone::Away);
        }
        // SAFETY: `lend` set it to a context that it keeps borrowed until it has set it to null
        // again, for which it needs the lock that the guard stands for.
        what(unsafe { &mut *lent.0 }).map_err(Gone::Error)
    }

    /// The same without the interpreter's lock, for calls that may wait.
    pub fn waiting<T: Send>(
        &self,
        py: Python,
        what: impl FnOnce(&mut filters::Context) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| self.with(what))?)
    }

    /// The same with the interpreter's lock, for calls that do not wait. If another thread of the
    /// filter's waits with the context, this waits for that thread, without the lock.
    pub fn quick<T: Send>(
        &self,
        py: Python,
        what: impl FnOnce(&mut filters::Context) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        match self.0.try_lock() {
            Ok(mut lent) => Ok(Self::using(&mut lent, what)?),
            Err(TryLockError::Poisoned(lent)) => Ok(Self::using(&mut lent.into_inner(), what)?),
            Err(TryLockError::WouldBlock) => self.waiting(py, what),
        }
    }

    /// Sends a draft.
    pub fn send(
        &self,
        py: Python,
        output: usize,
        draft: filters::Draft,
        len: usize,
        with: With,
    ) -> PyResult<()> {
        let meta = Meta { key: with.key, len, note: with.note };
        if self.quick(py, |context| context.would_wait(output, &meta))? {
            self.waiting(py, |context| context.send(output, draft, len, with))
        } else {
            self.quick(py, |context| context.send(output, draft, len, with))
        }
    }
}

/// Why the context could not be used.
pub enum Gone {
    Away,
    Error(Error),
}

impl From<Gone> for PyErr {
    fn from(gone: Gone) -> PyErr {
        match gone {
            Gone::Away => PyRuntimeError::new_err(
                "a filter's streams can be used only while its init, process or finalize runs",
            ),
            Gone::Error(error) => raised(error),
        }
    }
}
