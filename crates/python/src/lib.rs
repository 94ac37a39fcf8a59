//! `shunt._native`: crate `filters` for Python. Thin: users import `python/shunt/filters`, which
//! alone uses this module.
//!
//! A filter copy has a thread of its own, which waits without the interpreter's lock. Calls that
//! need not wait (a buffer is there, a credit is left) keep the lock: giving it up would cost more
//! than the call.

mod buffer;
mod context;
mod errors;
mod group;
mod lent;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("Cancelled", module.py().get_type::<errors::Cancelled>())?;
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
