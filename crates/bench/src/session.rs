//! The session that measurements run in.

use crate::cli::FabricOptions;
use crate::error::{Error, Result};
use crate::host::Cpus;
use crate::lan::Lan;
use crate::results::{Results, Side};
use crate::temp::TempDir;
use crate::wire::Wire;
use crate::{find, signals};
use std::path::{Path, PathBuf};

/// What all measurements of a run share.
pub struct Session {
    pub library: Option<PathBuf>,
    pub libexec: PathBuf,
    pub temp: TempDir,
    pub cpus: Cpus,
    pub rounds: usize,
    pub duration: f64,
    pub results: Results,
    /// Ethernets between two namespaces, while these are measured.
    pub lan: Option<Lan>,
    /// What is between the hosts, or stands for it, while that is measured.
    pub far: Option<FabricOptions>,
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
            libexec,
            temp: TempDir::new()?,
            cpus: Cpus::choose(),
            rounds,
            duration,
            results,
            lan: None,
            far: None,
        })
    }

    /// The library to put in front of this side's programs.
    pub fn library_for(&self, side: Side) -> Option<&Path> {
        self.library.as_deref().filter(|_| side.is_accelerated())
    }

    /// Loopback, unless the side is an Ethernet or another host is measured.
    pub fn wire(&self, side: Side) -> Wire {
        if let Some(far) = self.far.as_ref().filter(|_| side != Side::Unix) {
            return Wire { address: far.at, before: far.remote.clone(), ..Wire::LOOPBACK };
        }
        let wire = self.lan.as_ref().and_then(|lan| lan.wire(side));
        wire.unwrap_or(Wire::LOOPBACK)
    }

    /// Without the library there is no Shunt to measure; all else still is.
    pub fn sides(&self, wanted: &[Side]) -> Vec<Side> {
        wanted.iter().copied().filter(|s| !s.is_accelerated() || self.library.is_some()).collect()
    }

    /// Takes what one measurement gave, or notes why there is nothing. Only an interruption ends the run.
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
