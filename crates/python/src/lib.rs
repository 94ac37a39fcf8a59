//! `shunt._native`: crate `filters` for Python. Thin: what is pleasant to use is in `python/shunt/filters`, which alone knows of this module.
//!
//! A filter copy has a thread of its own, which waits without the interpreter's lock. What does not have to wait (a buffer is there, a credit is
//! left) is done without giving the lock up, which would cost more than it.

mod buffer;
mod context;
mod group;

use filters::{Error, Failure};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    shunt._native,
    Cancelled,
    PyException,
    "The unit of work is not wanted any more: a filter that gets this should end."
);

/// What the runtime says, as an exception.
fn raised(error: Error) -> PyErr {
    match error {
        Error::Cancelled => Cancelled::new_err("the unit of work was cancelled"),
        Error::Usage(what) => PyValueError::new_err(what),
        Error::Io(error) => PyOSError::new_err(error.to_string()),
        Error::Filter { what, .. } => PyRuntimeError::new_err(what),
    }
}

/// What a filter raised, as the runtime knows it.
fn caught(py: Python, error: PyErr) -> Error {
    if error.is_instance_of::<Cancelled>(py) {
        return Error::Cancelled;
    }
    let name = error.get_type(py).name().map_or_else(|_| "?".into(), |name| name.to_string());
    let text = error.value(py).str().map_or_else(|_| "?".into(), |text| text.to_string());
    let what = if text.is_empty() { name } else { format!("{name}: {text}") };
    let traceback = py
        .import("traceback")
        .and_then(|module| {
            module
                .call_method1("format_exception", (error.get_type(py), error.value(py), error.traceback(py)))
        })
        .and_then(|lines| lines.extract::<Vec<String>>())
        .map_or_else(|_| String::new(), |lines| lines.concat());
    Error::Filter { what, traceback }
}

/// Why a unit of work, or a group, failed: (kind, text, copies, host, traceback).
type Told = (&'static str, String, Vec<String>, String, String);

fn told(failure: &Failure) -> Told {
    let text = failure.to_string();
    match failure {
        Failure::Filter { copy, host, traceback, .. } => {
            ("filter", text, vec![copy.clone()], host.clone(), traceback.clone())
        }
        Failure::Lost { copies, host, .. } => ("lost", text, copies.clone(), host.clone(), String::new()),
        Failure::Cancelled => ("cancelled", text, Vec::new(), String::new(), String::new()),
        Failure::TimedOut => ("timeout", text, Vec::new(), String::new(), String::new()),
        Failure::Mistake(_) => ("mistake", text, Vec::new(), String::new(), String::new()),
        Failure::Closed(_) => ("closed", text, Vec::new(), String::new(), String::new()),
    }
}

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("Cancelled", module.py().get_type::<Cancelled>())?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("NOTE_MOST", filters::NOTE_MOST)?;
    module.add("WINDOW_MOST", filters::WINDOW_MOST)?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<buffer::Draft>()?;
    module.add_class::<context::Context>()?;
    module.add_class::<group::Layout>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<group::Unit>()?;
    module.add_function(wrap_pyfunction!(group::library_is_at, module)?)?;
    module.add_function(wrap_pyfunction!(group::serve, module)?)
}
