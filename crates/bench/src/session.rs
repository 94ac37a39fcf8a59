//! The session that measurements run in.

use crate::bridge::Bridge;
use crate::cli::FabricOptions;
use crate::error::{Error, Result};
use crate::host::Cpus;
use crate::lan::Lan;
use crate::results::{Results, Side};
use crate::temp::TempDir;
use crate::wire::Wire;
use crate::{find, signals};
use std::path::{Path, PathBuf};

/// Shared by all measurements of a run.
pub struct Session {
    pub library: Option<PathBuf>,
    /// Another build of it, measured in turn with it.
    pub beside: Option<PathBuf>,
    pub libexec: PathBuf,
    pub temp: TempDir,
    pub cpus: Cpus,
    pub rounds: usize,
    pub duration: f64,
    pub results: Results,
    /// Ethernets between two namespaces, while these are measured.
    pub lan: Option<Lan>,
    /// Two containers, while these are measured.
    pub bridge: Option<Bridge>,
    /// The network between the hosts, or in place of it, while that is measured.
    pub fabric: Option<FabricOptions>,
}

impl Session {
    pub fn new(rounds: usize, duration: f64) -> Result<Session> {
        signals::catch();
        let mut results = Results::default();
        let library = find::library();
        if library.is_none() {
            results.skip("Shunt", find::NO_LIBRARY);
        }
        let libexec = find::libexec().unwrap_or_default();
        Ok(Session {
            library,
            beside: None,
            libexec,
            temp: TempDir::new()?,
            cpus: Cpus::choose(),
            rounds,
            duration,
            results,
            lan: None,
            bridge: None,
            fabric: None,
        })
    }

    /// The library to preload for this side's programs.
    pub fn library_for(&self, side: Side) -> Option<&Path> {
        let library = if side == Side::Beside { &self.beside } else { &self.library };
        library.as_deref().filter(|_| side.is_accelerated())
    }

    /// Loopback, unless the side is an Ethernet, or containers or another host are measured.
    pub fn wire(&self, side: Side) -> Wire {
        if let Some(fabric) = self.fabric.as_ref().filter(|_| side != Side::Unix) {
            return Wire { address: fabric.at, before: fabric.remote.clone(), ..Wire::LOOPBACK };
        }
        let wire = self.lan.as_ref().and_then(|lan| lan.wire(side));
        let wire = wire.or_else(|| self.bridge.as_ref().and_then(|bridge| bridge.wire(side)));
        wire.unwrap_or(Wire::LOOPBACK)
    }

    /// The sides that can be measured: without the library not Shunt, but all others.
    pub fn sides(&self, wanted: &[Side]) -> Vec<Side> {
        wanted.iter().copied().filter(|s| !s.is_accelerated() || self.library.is_some()).collect()
    }

    /// The same, with the other build of the library after this one.
    pub fn sides_and_beside(&self, wanted: &[Side]) -> Vec<Side> {
        let mut sides = self.sides(wanted);
        if let (Some(at), Some(_)) = (sides.iter().position(|s| *s == Side::Shunt), &self.beside) {
            sides.insert(at + 1, Side::Beside);
        }
        sides
    }

    /// Takes the result of a measurement, or notes why there is none. Only an interruption ends the
    /// run.
    pub fn record<T>(&mut self, what: &str, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                eprintln!("  {what}: {error}");
                self.results.skip(what, error);
                Ok(None)
            }
        }
    }
}

/// Progress goes to stderr: stdout is for results.
pub fn progress(text: std::fmt::Arguments) {
    eprintln!("{text}");
}
