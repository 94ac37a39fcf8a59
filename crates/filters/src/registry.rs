//! The Rust interface: filters by name. A program registers its filters before anything else. A
//! process of a group then works for the group; another process goes on to make one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::copy::{Context, Filter};
use crate::error::{Error, Failure};
use crate::group::{Group, Options};
use crate::launch::Local;
use crate::layout::{Layout, Placement};
use crate::messages::Transport;
use crate::output::Chooser;
use crate::session::Factory;
use crate::worker::{TICKET, serve};

type MakeFilter = Box<dyn Fn(&[u8], usize, usize) -> Result<Box<dyn Filter>, Error> + Send + Sync>;
type MakeChooser = Box<dyn Fn(&[u8]) -> Result<Box<dyn Chooser>, Error> + Send + Sync>;

/// Filters and choosers by name.
#[derive(Default)]
pub struct Registry {
    filters: HashMap<String, MakeFilter>,
    choosers: HashMap<String, MakeChooser>,
}

/// The specification of a registered filter or chooser in a layout: its name, and bytes for the
/// function that makes it.
pub fn spec(name: &str, args: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\0", args].concat()
}

fn parts(spec: &[u8]) -> (String, &[u8]) {
    let (name, args) = match spec.iter().position(|&byte| byte == 0) {
        Some(at) => (&spec[..at], &spec[at + 1..]),
        None => (spec, &[][..]),
    };
    (String::from_utf8_lossy(name).into_owned(), args)
}

impl Registry {
    /// Registers a filter: `make` gets the bytes of the layout, the copy's rank, and the number of
    /// copies.
    pub fn filter<F: Filter + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&[u8], usize, usize) -> F + Send + Sync + 'static,
    ) -> &mut Registry {
        let make = move |args: &[u8], rank, copies| -> Result<Box<dyn Filter>, Error> {
            Ok(Box::new(make(args, rank, copies)))
        };
        self.filters.insert(name.into(), Box::new(make));
        self
    }

    /// Registers a filter that is nothing but a function.
    pub fn function(&mut self, name: &str, process: fn(&mut Context) -> Result<(), Error>) -> &mut Registry {
        struct Function(fn(&mut Context) -> Result<(), Error>);
        impl Filter for Function {
            fn process(&mut self, context: &mut Context) -> Result<(), Error> {
                (self.0)(context)
            }
        }
        self.filter(name, move |_, _, _| Function(process))
    }

    /// Registers a function that chooses copies, for streams with [`crate::flow::Policy::User`].
    pub fn chooser<C: Chooser + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&[u8]) -> C + Send + Sync + 'static,
    ) -> &mut Registry {
        let make = move |args: &[u8]| -> Result<Box<dyn Chooser>, Error> { Ok(Box::new(make(args))) };
        self.choosers.insert(name.into(), Box::new(make));
        self
    }

    /// If this process was started by a group, works for it and exits.
    pub fn serve_if_asked(self) -> Arc<Registry> {
        let registry = Arc::new(self);
        if let Ok(ticket) = std::env::var(TICKET) {
            let served = ticket
                .parse()
                .map_err(std::io::Error::other)
                .and_then(|ticket| serve(&ticket, Arc::clone(&registry) as Arc<dyn Factory>));
            if let Err(error) = &served {
                eprintln!("shunt filters: {error}");
            }
            std::process::exit(i32::from(served.is_err()));
        }
        registry
    }

    /// Starts a group here, with processes of this program where the placement asks for them.
    pub fn start(self: &Arc<Registry>, layout: &Layout, placement: Placement) -> Result<Group, Failure> {
        let options = Options::local(placement).map_err(|error| Failure::Closed(error.to_string()))?;
        self.start_with(layout, options)
    }

    /// Starts a group.
    pub fn start_with(self: &Arc<Registry>, layout: &Layout, options: Options) -> Result<Group, Failure> {
        Group::start(layout, options, Arc::clone(self) as Arc<dyn Factory>)
    }
}

impl Options {
    /// A group on this host, whose processes run the program that runs now.
    pub fn local(placement: Placement) -> std::io::Result<Options> {
        Ok(Options {
            placement,
            launcher: Box::new(Local::myself()?),
            beside: Local::myself()?,
            transport: Transport::Auto,
            window: 4,
            trace: false,
        })
    }
}

impl Factory for Registry {
    fn filter(&self, spec: &[u8], rank: usize, copies: usize) -> Result<Box<dyn Filter>, Error> {
        let (name, args) = parts(spec);
        match self.filters.get(&name) {
            Some(make) => make(args, rank, copies),
            None => Err(Error::filter(format!("no filter is registered as '{name}'"))),
        }
    }

    fn chooser(&self, spec: &[u8]) -> Result<Box<dyn Chooser>, Error> {
        let (name, args) = parts(spec);
        match self.choosers.get(&name) {
            Some(make) => make(args),
            None => Err(Error::filter(format!("no chooser is registered as '{name}'"))),
        }
    }
}
