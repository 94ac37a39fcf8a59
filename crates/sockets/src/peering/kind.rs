//! The kinds of peers: where the peer of a link can be, and what is so of each kind.

use super::wire::Wire;

/// The kinds. To be matched in this folder only: others ask what [`crate::peering`] answers.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// On this host, and in our network namespace, or of a user that it names to us: both map the
    /// same memory, and our kernel shows both ends. Also as long as there is no link: a connection
    /// that has had none is zeroes.
    Local,
    /// On this host, in a network namespace that ours does not show: both map the same memory.
    Foreign,
    /// On another host, reached by this wire.
    Remote(&'static Wire),
}

/// Where the peer of a link is: its [`Kind`] in one word, which sending and receiving load anyway.
#[derive(Debug, Clone, Copy)]
pub struct Peering(usize);

impl Peering {
    pub const LOCAL: Peering = Peering(0);
    pub const FOREIGN: Peering = Peering(1);

    pub(super) fn remote(wire: &'static Wire) -> Peering {
        Peering(core::ptr::from_ref(wire).expose_provenance())
    }

    #[inline(always)]
    pub fn kind(self) -> Kind {
        match self.0 {
            0 => Kind::Local,
            1 => Kind::Foreign,
            // SAFETY: made by `remote`; wires are never unmapped.
            at => Kind::Remote(unsafe { &*core::ptr::with_exposed_provenance(at) }),
        }
    }

    #[inline(always)]
    pub(super) fn wire(self) -> Option<&'static Wire> {
        match self.kind() {
            Kind::Local | Kind::Foreign => None,
            Kind::Remote(wire) => Some(wire),
        }
    }

    /// As a word that can be stored.
    pub(crate) fn word(self) -> u64 {
        self.0 as u64
    }
}

/// What [`Peering::word`] has made such a word of.
///
/// # Safety
///
/// It is 0 or one of those.
pub(crate) unsafe fn of_word(word: u64) -> Peering {
    Peering(word as usize)
}

/// What has a peer: connections and links.
pub(crate) trait Peered {
    /// Where it is, or was last.
    fn peering(&self) -> Peering;
}

/// What is so of all peers of one kind, whatever goes on. To ask costs one look at a word that
/// sending and receiving load anyway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// Both ends map the same memory: what is put is there at once, what is armed in the peer's
    /// segment can be read, either end can swap a word of a header, pages can be given back to the
    /// kernel, and both run on the same processors.
    pub shares_memory: bool,
    /// The peer's process can be named to our kernel: its descriptors copied, its memory read.
    pub reaches_process: bool,
    /// Ends tell each other by records in the companion where tcp goes on, as a word in memory may
    /// come later than the bytes. So what the companion has is looked at before it is read, a
    /// counted kick may be a record instead, and a writer stays on [`crate::conn::path::RESEND`]
    /// until the peer knows.
    pub uses_records: bool,
    /// Both are in one network namespace: names of sockets mean the same to both.
    pub shares_names: bool,
    /// Our kernel shows the peer's end of the connection, and whose it is. Else somebody has
    /// introduced it: agents, who have asked their kernels, or a proof by the connection itself.
    pub shows_end: bool,
    /// Children of fork() keep the connections of their parent, and the link with them.
    pub kept_by_children: bool,
}
