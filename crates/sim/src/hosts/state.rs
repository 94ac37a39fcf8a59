//! What a run with two hosts has more than others: plain data.

use std::collections::BTreeMap;
use std::ptr;

use cluster::wire::Reach;

use super::network::Network;
use crate::abi::{Fid, OpsFid};

/// All of it.
pub struct Hosts {
    pub network: Network,
    pub objects: Objects,
    pub agents: Agents,
}

/// What the agents know.
#[derive(Default)]
pub struct Agents {
    pub processes: BTreeMap<i32, Process>,
    pub tickets: u8,
}

/// A process that has connected.
#[derive(Default)]
pub struct Process {
    pub reach: Option<Reach>,
    /// By index: cookie, own address, peer's.
    pub posted: BTreeMap<u32, (u64, host::addr::Addr, host::addr::Addr)>,
}

/// Any object: the words behind the first three are the tables that its kind has there.
#[repr(C)]
pub struct Object {
    pub fid: Fid,
    words: [usize; 4],
    pub kind: Kind,
    /// Which one of its kind.
    pub number: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Fabric,
    Domain,
    Events,
    Completions,
    Listener,
    End,
    Memory,
}

/// The most objects of a run.
const OBJECTS: usize = 4096;

/// The objects of a run.
pub struct Objects(Vec<Object>);

impl Objects {
    pub fn new() -> Objects {
        Objects(Vec::with_capacity(OBJECTS))
    }

    /// A new one; `ops`: what all objects can.
    pub fn add(&mut self, kind: Kind, ops: *const OpsFid, words: [usize; 4], number: usize) -> *mut Object {
        // They must not move.
        assert!(self.0.len() < OBJECTS, "more objects than a run can have");
        self.0.push(Object { fid: Fid { class: 0, context: ptr::null_mut(), ops }, words, kind, number });
        self.0.last_mut().expect("just added")
    }

    /// The one of this number.
    pub fn find(&mut self, kind: Kind, number: usize) -> Option<&mut Object> {
        self.0.iter_mut().find(|object| object.kind == kind && object.number == number)
    }
}
