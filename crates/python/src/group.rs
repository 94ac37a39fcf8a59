//! Layouts, groups and units of work for Python, and launchers that are Python's.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use filters::flow::Policy;
use filters::{
    Chooser, Error, Factory, Filter, Launcher, Local, Next, Options, Place, Placement, Process,
    StreamOptions, Ticket, Transport, UnitOptions,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::context::{PyChooser, PyFilter};
use crate::errors::{Told, caught, told};

fn wrong(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn placed(placement: Vec<(String, usize, Vec<String>, bool)>) -> Placement {
    let place = |(name, copies, hosts, processes)| (name, Place { copies, hosts, processes });
    Placement(placement.into_iter().map(place).collect())
}

/// How often a thread that waits for a unit of work checks whether the user has pressed Ctrl-C.
const POLL: Duration = Duration::from_millis(100);

/// Filters and streams.
#[pyclass(module = "shunt._native")]
pub struct Layout(filters::Layout);

#[pymethods]
impl Layout {
    #[new]
    fn new() -> Layout {
        Layout(filters::Layout::default())
    }

    fn filter(&mut self, name: &str, spec: Vec<u8>) -> PyResult<()> {
        self.0.filter(name, spec).map_err(wrong)
    }

    #[allow(clippy::too_many_arguments)] // as many as a stream has properties; Python names them
    #[pyo3(signature = (from_, to, *, name, policy, weights, buffer_size, credits, split, chooser))]
    fn stream(
        &mut self,
        from_: &str,
        to: &str,
        name: Option<String>,
        policy: &str,
        weights: Vec<u32>,
        buffer_size: usize,
        credits: usize,
        split: bool,
        chooser: Vec<u8>,
    ) -> PyResult<()> {
        let policy = match policy {
            "round-robin" => Policy::RoundRobin,
            "weighted" => Policy::Weighted(weights),
            "demand-driven" => Policy::DemandDriven,
            "keyed" => Policy::Keyed,
            "user" => Policy::User,
            other => {
                return Err(wrong(format!(
                    "'{other}' is no policy: round-robin, weighted, demand-driven, keyed, or a function"
                )));
            }
        };
        let options = StreamOptions { name, policy, buffer_size, credits, split, chooser };
        self.0.stream(from_, to, options).map_err(wrong)
    }

    /// The plan for these hosts: for each copy its filter, its name, its host, its process.
    fn plan(
        &self,
        placement: Vec<(String, usize, Vec<String>, bool)>,
        hosts: Vec<String>,
    ) -> PyResult<Vec<(String, String, String, usize)>> {
        let plan = filters::layout::Plan::new(&self.0, &placed(placement), &hosts).map_err(wrong)?;
        let tell = |copy: filters::layout::CopyId| {
            let worker = plan.worker_of(copy);
            let filter = plan.layout.filters[copy.filter].name.clone();
            (filter, plan.name_of(copy), plan.host_of(worker).to_string(), worker)
        };
        Ok(plan.all().map(tell).collect())
    }

    /// Raises an exception if the layout is wrong.
    fn check(&self) -> PyResult<()> {
        self.0.check().map_err(wrong)
    }
}

/// Makes filters and choosers by two functions of Python's.
struct PyFactory {
    filter: Py<PyAny>,
    chooser: Py<PyAny>,
}

impl Factory for PyFactory {
    fn filter(&self, spec: &[u8], rank: usize, copies: usize) -> Result<Box<dyn Filter>, Error> {
        Python::attach(|py| {
            let made = self.filter.bind(py).call1((PyBytes::new(py, spec), rank, copies));
            let made = made.and_then(|object| PyFilter::new(py, object.unbind()));
            made.map(|filter| Box::new(filter) as Box<dyn Filter>).map_err(|error| caught(py, error))
        })
    }

    fn chooser(&self, spec: &[u8]) -> Result<Box<dyn Chooser>, Error> {
        Python::attach(|py| {
            let made = self.chooser.bind(py).call1((PyBytes::new(py, spec),));
            let made = made.map_err(|error| caught(py, error))?;
            Ok(Box::new(PyChooser(made.unbind())) as Box<dyn Chooser>)
        })
    }
}

/// A launcher that is an object of Python's: `hosts()`, `address()`, `launch(host, ticket)` whose
/// result has `ended()` and `kill()`.
struct PyLauncher(Py<PyAny>);

fn as_io(error: PyErr) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

impl Launcher for PyLauncher {
    fn hosts(&mut self) -> std::io::Result<Vec<String>> {
        Python::attach(|py| self.0.bind(py).call_method0("hosts")?.extract()).map_err(as_io)
    }

    fn address(&mut self) -> std::io::Result<IpAddr> {
        Python::attach(|py| self.0.bind(py).call_method0("address")?.extract()).map_err(as_io)
    }

    fn launch(&mut self, host: &str, ticket: &Ticket) -> std::io::Result<Box<dyn Process>> {
        Python::attach(|py| {
            let process = self.0.bind(py).call_method1("launch", (host, ticket.to_string()))?;
            Ok(Box::new(PyProcess(process.unbind())) as Box<dyn Process>)
        })
        .map_err(as_io)
    }
}

struct PyProcess(Py<PyAny>);

impl Process for PyProcess {
    fn ended(&mut self) -> Option<String> {
        // A launcher that cannot answer counts as having lost it.
        Python::attach(|py| self.0.bind(py).call_method0("ended").and_then(|how| how.extract()))
            .unwrap_or_else(|error| Some(error.to_string()))
    }

    fn kill(&mut self) {
        // Killing a process that is gone is no error.
        let _ = Python::attach(|py| self.0.bind(py).call_method0("kill").map(drop));
    }
}

/// A filter group that runs.
#[pyclass(frozen, module = "shunt._native")]
pub struct Group(Mutex<Option<Arc<filters::Group>>>);

/// The status of one copy: (name, host, machine, pid, state, uow, ended).
type CopyTold = (String, String, String, u32, &'static str, u64, u64);

#[pymethods]
impl Group {
    /// Starts a group. Problems are returned instead.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // Python names them
    #[pyo3(signature = (layout, *, placement, launcher, command, transport, window, trace, make_filter, make_chooser))]
    fn start(
        py: Python,
        layout: &Layout,
        placement: Vec<(String, usize, Vec<String>, bool)>,
        launcher: Option<Py<PyAny>>,
        command: Vec<String>,
        transport: &str,
        window: usize,
        trace: bool,
        make_filter: Py<PyAny>,
        make_chooser: Py<PyAny>,
    ) -> PyResult<(Option<Group>, Option<Told>)> {
        let transport = match transport {
            "auto" => Transport::Auto,
            "shunt" => Transport::Shunt,
            "tcp" => Transport::Tcp,
            other => return Err(wrong(format!("'{other}' is no transport: auto, shunt, tcp"))),
        };
        let local = || Local::new(&command[0], command[1..].iter().cloned());
        let launcher: Box<dyn Launcher> = match launcher {
            Some(object) => Box::new(PyLauncher(object)),
            None => Box::new(local()),
        };
        let options =
            Options { placement: placed(placement), launcher, beside: local(), transport, window, trace };
        let factory = Arc::new(PyFactory { filter: make_filter, chooser: make_chooser });
        let started = py.detach(|| filters::Group::start(&layout.0, options, factory));
        Ok(match started {
            Ok(group) => (Some(Group(Mutex::new(Some(Arc::new(group))))), None),
            Err(failure) => (None, Some(told(&failure))),
        })
    }

    /// Appends a unit of work.
    fn append(&self, params: Vec<u8>, timeout: Option<f64>, reruns: usize) -> PyResult<Unit> {
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose().map_err(wrong)?;
        Ok(Unit(self.group()?.append(params, UnitOptions { timeout, reruns })))
    }

    /// For each copy: name, host, worker.
    fn plan(&self) -> PyResult<Vec<(String, String, usize)>> {
        let group = self.group()?;
        let plan = group.plan();
        let tell = |copy| {
            let worker = plan.worker_of(copy);
            (plan.name_of(copy), plan.host_of(worker).to_string(), worker)
        };
        Ok(plan.all().map(tell).collect())
    }

    /// The state at this moment: copies, figures, units (done, failed, under way, waiting), losses.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let group = self.group()?;
        let status = py.detach(|| group.status());
        let all = PyDict::new(py);
        let copies: Vec<CopyTold> = status
            .copies
            .into_iter()
            .map(|copy| {
                let state = copy.state.map_or("unknown", state_name);
                (copy.name, copy.host, copy.machine, copy.pid, state, copy.uow, copy.ended)
            })
            .collect();
        all.set_item("copies", copies)?;
        let mut figures = Vec::new();
        for figure in &status.figures {
            let one = PyDict::new(py);
            one.set_item("stream", &figure.stream)?;
            one.set_item("producer", &figure.producer)?;
            one.set_item("consumer", &figure.consumer)?;
            one.set_item("way", &figure.way)?;
            one.set_item("sent", figure.sent)?;
            one.set_item("buffers", figure.buffers)?;
            one.set_item("bytes", figure.bytes)?;
            one.set_item("unacknowledged", figure.unacknowledged)?;
            one.set_item("unacknowledged_most", figure.unacknowledged_most)?;
            one.set_item("unread", figure.unread)?;
            one.set_item("blocked", figure.blocked_ns as f64 / 1e9)?;
            one.set_item("idle", figure.idle_ns as f64 / 1e9)?;
            for (name, part) in
                [("latency_p50", 0.5), ("latency_p90", 0.9), ("latency_p99", 0.99), ("latency_max", 1.0)]
            {
                one.set_item(name, figure.latency(part).map(|nanos| nanos as f64 / 1e9))?;
            }
            figures.push(one);
        }
        all.set_item("figures", figures)?;
        all.set_item("units", status.units.to_vec())?;
        all.set_item("losses", status.losses)?;
        Ok(all)
    }

    /// The activities of copies since the last call: (copy, host, index, uow, state, from, to),
    /// nanoseconds since 1970.
    #[allow(clippy::type_complexity)] // it is taken apart at once, in Python
    fn spans(&self, py: Python) -> PyResult<Vec<(String, String, usize, u64, &'static str, u64, u64)>> {
        let group = self.group()?;
        let spans = py.detach(|| group.spans());
        let tell = |traced: filters::Traced| {
            let span = traced.span;
            (traced.copy, traced.host, traced.index, traced.uow, state_name(span.state), span.from, span.to)
        };
        Ok(spans.into_iter().map(tell).collect())
    }

    /// Ends it.
    fn close(&self, py: Python) {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(group));
    }
}

impl Group {
    fn group(&self) -> PyResult<Arc<filters::Group>> {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        group.clone().ok_or_else(|| PyRuntimeError::new_err("the group is closed"))
    }
}

impl Drop for Group {
    /// A group ends when nobody refers to it any more. Its threads need the interpreter for that,
    /// and the thread that drops the group has it.
    fn drop(&mut self) {
        let mut group = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if Python::try_attach(|py| py.detach(|| drop(group.take()))).is_none() {
            // The interpreter has ended: a thread that waits for it would wait for ever.
            std::mem::forget(group);
        }
    }
}

fn state_name(state: filters::copy::State) -> &'static str {
    use filters::copy::State;
    match state {
        State::Idle => "idle",
        State::Init => "init",
        State::Process => "process",
        State::Drain => "drain",
        State::Finalize => "finalize",
    }
}

/// A unit of work.
#[pyclass(frozen, module = "shunt._native")]
pub struct Unit(filters::Unit);

#[pymethods]
impl Unit {
    #[getter]
    fn id(&self) -> u64 {
        self.0.id()
    }

    /// The next partial result: ("part", copy, data), ("done",), ("failed", why), or ("later",) if
    /// none comes in time.
    fn next_part<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let next = self.patiently(py, timeout, |unit, wait| match unit.next_part(Some(wait)) {
            Next::NotYet => None,
            next => Some(next),
        })?;
        Ok(match next {
            Some(Next::Part(part)) => {
                ("part", part.copy, PyBytes::new(py, &part.data)).into_pyobject(py)?.into_any()
            }
            Some(Next::Done) => ("done",).into_pyobject(py)?.into_any(),
            Some(Next::Failed(failure)) => ("failed", told(&failure)).into_pyobject(py)?.into_any(),
            Some(Next::NotYet) | None => ("later",).into_pyobject(py)?.into_any(),
        })
    }

    /// Waits for the end: ("done",), ("failed", why) or ("later",).
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self.patiently(py, timeout, |unit, wait| unit.wait(Some(wait)))? {
            Some(Ok(())) => ("done",).into_pyobject(py)?.into_any(),
            Some(Err(failure)) => ("failed", told(&failure)).into_pyobject(py)?.into_any(),
            None => ("later",).into_pyobject(py)?.into_any(),
        })
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn progress(&self) -> (usize, usize) {
        self.0.progress()
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    /// Calls a function once, from another thread, when there is a new partial result or the end.
    fn on_news(&self, call: Py<PyAny>) {
        self.0.on_news(move || {
            Python::attach(|py| {
                if let Err(error) = call.bind(py).call0() {
                    error.write_unraisable(py, Some(call.bind(py)));
                }
            });
        });
    }
}

impl Unit {
    /// Waits in short steps, so that Ctrl-C works.
    fn patiently<T: Send>(
        &self,
        py: Python,
        timeout: Option<f64>,
        look: impl Fn(&filters::Unit, Duration) -> Option<T> + Sync,
    ) -> PyResult<Option<T>> {
        let until = match timeout {
            Some(seconds) => Some(
                std::time::Instant::now() + Duration::try_from_secs_f64(seconds.max(0.0)).map_err(wrong)?,
            ),
            None => None,
        };
        loop {
            let left = until
                .map_or(POLL, |until| until.saturating_duration_since(std::time::Instant::now()).min(POLL));
            if let Some(found) = py.detach(|| look(&self.0, left)) {
                return Ok(Some(found));
            }
            if until.is_some_and(|until| std::time::Instant::now() >= until) {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }
}

/// Sets the path of libshunt.so, which sockets between processes of a group use.
#[pyfunction]
pub fn library_is_at(path: std::path::PathBuf) {
    filters::library_is_at(path);
}

/// Works for the group that gave the ticket, until it is finished.
#[pyfunction]
pub fn serve(py: Python, ticket: &str, make_filter: Py<PyAny>, make_chooser: Py<PyAny>) -> PyResult<()> {
    let ticket: Ticket = ticket.parse().map_err(PyValueError::new_err)?;
    let factory = Arc::new(PyFactory { filter: make_filter, chooser: make_chooser });
    py.detach(|| filters::serve(&ticket, factory))?;
    Ok(())
}
