//! A running net: starts the three threads that its driver defines, and ends them.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::net::Net;
use crate::remote::Find;
use crate::table::{self, Driver, Table};
use crate::{ethom, ethos};

/// A net whose threads run; they end when it is dropped.
#[derive(Debug)]
pub struct Running {
    /// The net.
    pub net: Arc<Net>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Opens a net and starts its threads.
    pub fn start(settings: table::Net, me: u16, table: &Table, find: &Arc<Find>) -> io::Result<Running> {
        let driver = settings.driver;
        let net = Arc::new(Net::open(settings, me, table)?);
        let mut running = Running { net: net.clone(), threads: Vec::new() };
        type Job = Box<dyn FnOnce() + Send>;
        let jobs: [(&str, Job); 3] = match driver {
            Driver::Ethos => ethos::jobs(&net, table)?,
            Driver::Ethom => ethom::jobs(&net, table, find)?,
        };
        for (role, job) in jobs {
            let name = format!("{role} {}", net.settings.interface);
            running.threads.push(std::thread::Builder::new().name(name).spawn(job)?);
        }
        Ok(running)
    }
}

impl std::ops::Drop for Running {
    fn drop(&mut self) {
        self.net.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that panicked has said so
        }
    }
}
