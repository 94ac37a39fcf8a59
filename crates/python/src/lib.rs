//! `shunt._native`: crate `filters` for Python. Thin: what is pleasant to use is in `python/shunt/filters`, which alone knows of this module.
//!
//! A filter copy has a thread of its own, which waits without the interpreter's lock. What does not have to wait (a buffer is there, a credit is
//! left) is done without giving the lock up, which would cost more than it.

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
