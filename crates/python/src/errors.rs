//! Errors of the runtime as exceptions, exceptions of filters as errors, and failures in the form
//! that Python gets.

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

/// An error of the runtime, as an exception.
pub fn raised(error: Error) -> PyErr {
    match error {
        Error::Cancelled => Cancelled::new_err("the unit of work was cancelled"),
        Error::Usage(what) => PyValueError::new_err(what),
        Error::Io(error) => PyOSError::new_err(error.to_string()),
        Error::Filter { what, .. } => PyRuntimeError::new_err(what),
    }
}

/// An exception of a filter, as an error of the runtime.
pub fn caught(py: Python, error: PyErr) -> Error {
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
pub type Told = (&'static str, String, Vec<String>, String, String);

/// A failure in this form.
pub fn told(failure: &Failure) -> Told {
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
