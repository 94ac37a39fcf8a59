//! Buffers as Python sees them: objects with the buffer protocol, so that memoryview, NumPy and
//! Arrow read (or fill) the stream's own memory.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use filters::With;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::lent::Lent;

fn locked<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A received buffer: read-only. It may be kept. Its memory is given back when it is released, or
/// when nothing refers to it any more. A released buffer cannot be read.
#[pyclass(frozen, weakref, module = "shunt._native")]
pub struct Buffer {
    inner: Mutex<Option<filters::Buffer>>,
    views: AtomicUsize,
    len: usize,
    key: u64,
    more: bool,
    producer: usize,
    input: usize,
}

impl Buffer {
    pub fn new(buffer: filters::Buffer) -> Buffer {
        Buffer {
            views: AtomicUsize::new(0),
            len: buffer.len(),
            key: buffer.key(),
            more: buffer.more(),
            producer: buffer.producer(),
            input: buffer.input(),
            inner: Mutex::new(Some(buffer)),
        }
    }

    fn with<T>(&self, what: impl FnOnce(&filters::Buffer) -> T) -> PyResult<T> {
        match &*locked(&self.inner) {
            Some(buffer) => Ok(what(buffer)),
            None => {
                Err(PyValueError::new_err("this buffer was released: its memory holds something else by now"))
            }
        }
    }
}

#[pymethods]
impl Buffer {
    /// The number that its producer gave it, or 0.
    #[getter]
    fn key(&self) -> u64 {
        self.key
    }

    /// Whether the write that it belongs to goes on in the next buffer of the same producer copy.
    #[getter]
    fn more(&self) -> bool {
        self.more
    }

    /// Which copy of the producer sent it.
    #[getter]
    fn producer(&self) -> usize {
        self.producer
    }

    /// The filter's input by which it came.
    #[getter]
    fn stream_index(&self) -> usize {
        self.input
    }

    /// The note that its producer wrote beside it.
    #[getter]
    fn note<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|buffer| PyBytes::new(py, buffer.note()))
    }

    /// A copy of its bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|buffer| PyBytes::new(py, buffer.bytes()))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.tobytes(py)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Whether it was released.
    #[getter]
    fn released(&self) -> bool {
        locked(&self.inner).is_none()
    }

    /// Gives its memory back now. Views of it (memoryview, numpy.frombuffer) must be gone.
    fn release(&self) -> PyResult<()> {
        let mut inner = locked(&self.inner);
        let views = self.views.load(Ordering::Acquire);
        if views > 0 && inner.is_some() {
            return Err(PyBufferError::new_err(format!(
                "{views} views of this buffer are alive: release them first"
            )));
        }
        inner.take();
        Ok(())
    }

    fn __enter__(slf: Py<Buffer>) -> Py<Buffer> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<PyAny>, _value: &Bound<PyAny>, _trace: &Bound<PyAny>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        let state = if self.released() { ", released" } else { "" };
        format!("<shunt buffer of {} bytes from copy {}{state}>", self.len, self.producer)
    }

    unsafe fn __getbuffer__(slf: Bound<Buffer>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let buffer = slf.get();
        let inner = locked(&buffer.inner);
        let at = match &*inner {
            Some(inner) => inner.address().as_ptr(),
            None => {
                // SAFETY: the interpreter passes a view to be filled; without an owner it is empty.
                unsafe { (*view).obj = std::ptr::null_mut() };
                return Err(PyValueError::new_err(
                    "this buffer was released: its memory holds something else by now",
                ));
            }
        };
        // SAFETY: the memory stays as long as the buffer is not released, which views prevent; they
        // keep the object alive.
        unsafe { fill(view, slf.as_any(), at.cast(), buffer.len, true, flags) }?;
        buffer.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}

/// # Safety
/// `view` is one that the interpreter wants filled, and `at` has `len` bytes as long as it lives.
unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: &Bound<PyAny>,
    at: *mut c_void,
    len: usize,
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    let (readonly, length) = (c_int::from(readonly), len as ffi::Py_ssize_t);
    // SAFETY: the caller vouches for all of it.
    let filled = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), at, length, readonly, flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// Memory of a stream, to be filled and sent. At the end of a `with` block it is sent; if an
/// exception leaves the block, it is given back.
#[pyclass(frozen, weakref, module = "shunt._native")]
pub struct Draft {
    inner: Mutex<Option<filters::Draft>>,
    lent: Arc<Lent>,
    output: usize,
    size: usize,
    with: Mutex<(Option<usize>, u64, Vec<u8>)>,
    views: AtomicUsize,
}

impl Draft {
    pub fn new(draft: filters::Draft, size: usize, lent: Arc<Lent>, output: usize) -> Draft {
        let with = Mutex::new((None, 0, Vec::new()));
        Draft { inner: Mutex::new(Some(draft)), lent, output, size, with, views: AtomicUsize::new(0) }
    }

    fn take(&self) -> PyResult<filters::Draft> {
        let views = self.views.load(Ordering::Acquire);
        if views > 0 {
            let what = format!(
                "{views} views of this buffer are alive, which could change it after it was sent: release them first"
            );
            return Err(PyBufferError::new_err(what));
        }
        locked(&self.inner)
            .take()
            .ok_or_else(|| PyValueError::new_err("this buffer was sent, or given back, before"))
    }
}

#[pymethods]
impl Draft {
    /// How many of its bytes are sent: all, unless this is set.
    #[getter]
    fn length(&self) -> usize {
        locked(&self.with).0.unwrap_or(self.size)
    }

    #[setter]
    fn set_length(&self, length: usize) {
        locked(&self.with).0 = Some(length);
    }

    /// A number for keyed streams, which the consumer sees.
    #[getter]
    fn key(&self) -> u64 {
        locked(&self.with).1
    }

    #[setter]
    fn set_key(&self, key: u64) {
        locked(&self.with).1 = key;
    }

    /// A few bytes that the consumer sees beside it.
    #[getter]
    fn note<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &locked(&self.with).2)
    }

    #[setter]
    fn set_note(&self, note: Vec<u8>) {
        locked(&self.with).2 = note;
    }

    fn __len__(&self) -> usize {
        self.size
    }

    /// Sends it: as many bytes as `length` says.
    fn send(&self, py: Python) -> PyResult<()> {
        let draft = self.take()?;
        let (len, key, note) = locked(&self.with).clone();
        self.lent.send(py, self.output, draft, len.unwrap_or(self.size), With { key, note: &note })
    }

    /// Gives it back unsent.
    fn discard(&self) -> PyResult<()> {
        self.take().map(drop)
    }

    fn __enter__(slf: Py<Draft>) -> Py<Draft> {
        slf
    }

    fn __exit__(
        &self,
        py: Python,
        kind: &Bound<PyAny>,
        _value: &Bound<PyAny>,
        _trace: &Bound<PyAny>,
    ) -> PyResult<()> {
        if locked(&self.inner).is_none() {
            return Ok(());
        }
        if kind.is_none() {
            return self.send(py);
        }
        // The exception goes on; views that it keeps alive must not stop it.
        if self.views.load(Ordering::Acquire) == 0 {
            locked(&self.inner).take();
        }
        Ok(())
    }

    unsafe fn __getbuffer__(slf: Bound<Draft>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let draft = slf.get();
        let inner = locked(&draft.inner);
        let at = match &*inner {
            Some(inner) => inner.address(),
            None => {
                // SAFETY: as for `Buffer`.
                unsafe { (*view).obj = std::ptr::null_mut() };
                return Err(PyValueError::new_err("this buffer was sent: it belongs to its reader"));
            }
        };
        // SAFETY: the slot is this draft's until it is sent, which views prevent; they keep the
        // object alive.
        unsafe { fill(view, slf.as_any(), at.cast(), draft.size, false, flags) }?;
        draft.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}
