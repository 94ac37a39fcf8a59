//! How processes of a group are started. Other software launches on many machines
//! (Dask.distributed, for one). A launcher here has little to do: it names its hosts, and starts
//! one process on one of them with a ticket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use crate::worker::{TICKET, Ticket};

/// Starts processes on hosts.
pub trait Launcher: Send {
    /// The names of its hosts, which a placement may use. None: filters run in the caller's
    /// process, or in processes on its host.
    fn hosts(&mut self) -> io::Result<Vec<String>>;
    /// The address of this host by which its processes reach the caller.
    fn address(&mut self) -> io::Result<IpAddr>;
    /// Starts a process that works for the group of the ticket ([`crate::serve`]).
    fn launch(&mut self, host: &str, ticket: &Ticket) -> io::Result<Box<dyn Process>>;
}

/// A process that was started.
pub trait Process: Send {
    /// How it ended, if it has.
    fn ended(&mut self) -> Option<String>;
    /// Ends it, if it has not.
    fn kill(&mut self);
}

/// Processes on this host, made from one command. The default launcher.
#[derive(Debug)]
pub struct Local {
    program: std::path::PathBuf,
    args: Vec<String>,
}

impl Local {
    /// Runs this command, which must reach [`crate::Registry::serve_if_asked`].
    pub fn new(program: impl Into<std::path::PathBuf>, args: impl IntoIterator<Item = String>) -> Local {
        Local { program: program.into(), args: args.into_iter().collect() }
    }

    /// With the program that runs now, without arguments.
    pub fn myself() -> io::Result<Local> {
        Ok(Local::new(std::env::current_exe()?, []))
    }
}

impl Launcher for Local {
    fn hosts(&mut self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn address(&mut self) -> io::Result<IpAddr> {
        Ok(Ipv4Addr::LOCALHOST.into())
    }

    fn launch(&mut self, _host: &str, ticket: &Ticket) -> io::Result<Box<dyn Process>> {
        let child = Command::new(&self.program)
            .args(&self.args)
            .env(TICKET, ticket.to_string())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.program.display())))?;
        Ok(Box::new(Started(child)))
    }
}

struct Started(Child);

impl Process for Started {
    fn ended(&mut self) -> Option<String> {
        self.0.try_wait().ok().flatten().map(|status| status.to_string())
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
