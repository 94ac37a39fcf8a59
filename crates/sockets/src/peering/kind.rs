//! The kinds of peers: where the peer of a link can be, and what is so of each kind.

use super::wire::Wire;

/// Where the peer of a link is. To be matched in this folder only: others ask what
/// [`crate::peering`] answers.
#[derive(Debug, Clone, Copy)]
pub enum Peering {
    /// On this host: both map the same memory. Also as long as there is no link: a connection that
    /// has had none is zeroes.
    Local,
    /// On another host, reached by this wire.
    Remote(&'static Wire),
}

// SAFETY: zeroes are a valid `Peering`, as the compiler checks by this, and which.
const _: () = assert!(matches!(unsafe { core::mem::zeroed::<Peering>() }, Peering::Local));
// One word, which sending and receiving load anyway.
const _: () = assert!(size_of::<Peering>() == size_of::<usize>());

impl Peering {
    #[inline(always)]
    pub(super) fn wire(self) -> Option<&'static Wire> {
        match self {
            Peering::Local => None,
            Peering::Remote(wire) => Some(wire),
        }
    }

    /// As a word that can be stored.
    pub(crate) fn word(self) -> u64 {
        self.wire().map_or(0, |wire| core::ptr::from_ref(wire) as u64)
    }
}

/// What [`Peering::word`] has made such a word of.
///
/// # Safety
///
/// It is 0 or one of those.
pub(crate) unsafe fn of_word(word: u64) -> Peering {
    match word {
        0 => Peering::Local,
        // SAFETY: as the caller says; wires are never unmapped.
        at => Peering::Remote(unsafe { &*(at as *const Wire) }),
    }
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
    /// Our kernel shows the peer's end of the connection, and whose it is. Else agents have asked
    /// theirs.
    pub shows_end: bool,
    /// Children of fork() keep the connections of their parent, and the link with them.
    pub kept_by_children: bool,
}
