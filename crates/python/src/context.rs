//! The runtime as a filter in Python sees it, and the filter as the runtime sees it.

use std::sync::{Arc, Mutex, PoisonError};

use filters::flow::{Account, Meta};
use filters::{Error, Filter, Found, With};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Buffer, Draft};
use crate::errors::caught;
use crate::lent::Lent;

/// The runtime, for one copy of a filter: valid while one of the filter's methods runs.
#[pyclass(frozen, module = "shunt._native")]
pub struct Context {
    lent: Arc<Lent>,
    /// Set before each call: the number and the parameters of the unit of work.
    uow: Mutex<(u64, Py<PyBytes>)>,
}

#[pymethods]
impl Context {
    /// (rank, copies, name, host, [(stream, buffer_size) of inputs], the same of outputs).
    #[allow(clippy::type_complexity)] // it is taken apart at once, in Python
    fn describe(
        &self,
    ) -> PyResult<(usize, usize, String, String, Vec<(String, usize)>, Vec<(String, usize)>)> {
        let streams = |defs: &mut dyn Iterator<Item = &filters::layout::StreamDef>| {
            defs.map(|def| (def.name.clone(), def.buffer_size)).collect()
        };
        Ok(self.lent.with(|context| {
            let (inputs, outputs) = (streams(&mut context.inputs()), streams(&mut context.outputs()));
            Ok((
                context.rank(),
                context.copies(),
                context.name().into(),
                context.host().into(),
                inputs,
                outputs,
            ))
        })?)
    }

    /// The unit of work's number.
    #[getter]
    fn uow(&self) -> u64 {
        self.uow.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// The bytes that were appended.
    #[getter]
    fn params(&self, py: Python) -> Py<PyBytes> {
        self.uow.lock().unwrap_or_else(PoisonError::into_inner).1.clone_ref(py)
    }

    /// Whether the unit of work was cancelled.
    #[getter]
    fn cancelled(&self) -> PyResult<bool> {
        Ok(self.lent.with(|context| Ok(context.uow().is_cancelled()))?)
    }

    /// The next buffer, of any input or of one; None at the end of the unit of work.
    #[pyo3(signature = (input=None))]
    fn read(&self, py: Python, input: Option<usize>) -> PyResult<Option<Buffer>> {
        match self.lent.quick(py, |context| context.try_read(input))? {
            Found::Buffer(buffer) => return Ok(Some(Buffer::new(buffer))),
            Found::End => return Ok(None),
            Found::Nothing => {}
        }
        let read = self.lent.waiting(py, |context| match input {
            Some(input) => context.read_from(input),
            None => context.read(),
        });
        Ok(read?.map(Buffer::new))
    }

    /// Memory for a buffer of an output.
    fn reserve(slf: Bound<Context>, output: usize) -> PyResult<Draft> {
        let (py, context) = (slf.py(), slf.get());
        let size =
            |context: &filters::Context| context.outputs().nth(output).map_or(0, |def| def.buffer_size);
        let (draft, size) =
            match context.lent.quick(py, |context| Ok((context.try_reserve(output)?, size(context))))? {
                (Some(draft), size) => (draft, size),
                (None, size) => (context.lent.waiting(py, |context| context.reserve(output))?, size),
            };
        Ok(Draft::new(draft, size, Arc::clone(&context.lent), output))
    }

    /// Writes bytes to an output.
    #[pyo3(signature = (output, data, key=0, note=None))]
    fn write(&self, output: usize, data: &Bound<PyAny>, key: u64, note: Option<&[u8]>) -> PyResult<()> {
        let py = data.py();
        let with = With { key, note: note.unwrap_or_default() };
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return self.write_bytes(py, output, bytes.as_bytes(), with);
        }
        let view = PyBuffer::<u8>::get(data).or_else(|_| {
            // Data of other types: as bytes, if it lies in one piece.
            py.import("builtins")?
                .getattr("memoryview")?
                .call1((data,))?
                .call_method1("cast", ("B",))
                .and_then(|view| PyBuffer::get(&view))
        })?;
        if !view.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "only what lies in memory in one piece can be written: copy it first",
            ));
        }
        // SAFETY: the view holds so many bytes until it is dropped, after the write. A program may
        // change them meanwhile, from another thread: they are plain bytes, and any value is valid.
        let bytes = unsafe { std::slice::from_raw_parts(view.buf_ptr().cast::<u8>(), view.len_bytes()) };
        self.write_bytes(py, output, bytes, with)
    }

    /// Hands a partial result to the caller that appended the unit of work.
    fn emit(&self, py: Python, data: &[u8]) -> PyResult<()> {
        let data = data.to_vec();
        self.lent.waiting(py, |context| context.emit(data))
    }
}

impl Context {
    fn write_bytes(&self, py: Python, output: usize, bytes: &[u8], with: With) -> PyResult<()> {
        let meta = Meta { key: with.key, len: bytes.len(), note: with.note };
        // Copying much takes time, in which others can have the interpreter. Data that does not fit
        // is split, or refused.
        let fits = |context: &filters::Context| {
            context.outputs().nth(output).is_some_and(|def| bytes.len() <= def.buffer_size)
        };
        let now = |context: &mut filters::Context| Ok(fits(context) && !context.would_wait(output, &meta)?);
        if bytes.len() <= LONG && self.lent.quick(py, now)? {
            // There may be no slot although there is a credit: consumers may keep buffers.
            if let Some(mut draft) = self.lent.quick(py, |context| context.try_reserve(output))? {
                draft.bytes()[..bytes.len()].copy_from_slice(bytes);
                return self.lent.quick(py, |context| context.send(output, draft, bytes.len(), with));
            }
        }
        self.lent.waiting(py, |context| context.write_to(output, bytes, with))
    }
}

const LONG: usize = 256 << 10;

/// A filter that is an object of Python's, with methods `init`, `process` and `finalize` that take
/// the context.
pub struct PyFilter {
    object: Py<PyAny>,
    context: Py<Context>,
}

impl PyFilter {
    pub fn new(py: Python, object: Py<PyAny>) -> PyResult<PyFilter> {
        let context = Context { lent: Arc::default(), uow: Mutex::new((0, PyBytes::new(py, &[]).unbind())) };
        Ok(PyFilter { object, context: Py::new(py, context)? })
    }

    /// Calls a method; the context is lent while it runs.
    fn call(&mut self, method: &str, context: &mut filters::Context) -> Result<(), Error> {
        Python::attach(|py| {
            let lent = self.context.get();
            {
                let mut uow = lent.uow.lock().unwrap_or_else(PoisonError::into_inner);
                if uow.0 != context.uow().id {
                    *uow = (context.uow().id, PyBytes::new(py, &context.uow().params).unbind());
                }
            }
            let result = lent
                .lent
                .lend(py, context, || self.object.bind(py).call_method1(method, (self.context.bind(py),)));
            result.map(drop).map_err(|error| caught(py, error))
        })
    }
}

impl Filter for PyFilter {
    fn init(&mut self, context: &mut filters::Context) -> Result<(), Error> {
        self.call("init", context)
    }

    fn process(&mut self, context: &mut filters::Context) -> Result<(), Error> {
        self.call("process", context)
    }

    fn finalize(&mut self, context: &mut filters::Context) -> Result<(), Error> {
        self.call("finalize", context)
    }
}

/// A policy that is a function of Python's: `choose(key, length, note, unacknowledged)` gives the
/// rank.
pub struct PyChooser(pub Py<PyAny>);

impl filters::Chooser for PyChooser {
    fn choose(&mut self, buffer: &Meta, copies: &[Account]) -> Result<usize, Error> {
        Python::attach(|py| {
            let unacknowledged: Vec<u64> = copies.iter().map(Account::unacknowledged).collect();
            let note = PyBytes::new(py, buffer.note);
            let chosen = self.0.bind(py).call1((buffer.key, buffer.len, note, unacknowledged));
            chosen.and_then(|chosen| chosen.extract()).map_err(|error| caught(py, error))
        })
    }
}
