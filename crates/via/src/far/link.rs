//! The way to a peer on another host, and what comes of what it is asked for.

use fabric::shm::Map;

/// The way to a peer on another host: a link, of which one end's segment is this one's. What is put becomes visible there in the order put (rule F1).
pub trait Wire: Send + Sync {
    /// The segment that the peer writes into.
    fn mine(&self) -> Map;
    /// As large as the peer's segment: what was written there, as far as it was from here.
    fn shadow(&self) -> Map;
    /// Bytes of the shadow are to be there.
    fn bytes(&self, offset: usize, len: usize);
    /// This word is to be there.
    fn word(&self, offset: usize, value: u64);
    /// Stimulates a tripwire there; the peer looks itself what is armed.
    fn stimulate(&self, offset: usize, interest: u64);
    /// What is put from now on goes together, as far as it can, when [`Wire::let_go`] is called.
    fn hold(&self);
    /// Undoes [`Wire::hold`].
    fn let_go(&self);
    /// Looks whether something has come.
    fn look(&self);
    /// Asks the peer for an answer, which comes behind all that it has put before it is asked; the question's number.
    fn ask(&self) -> u64;
    /// The last question that it has answered.
    fn answered(&self) -> u64;
    /// Has the peer do what was put at [`crate::segment::at::ASKED`] there; the request's number.
    fn request(&self) -> u64;
    /// What came of it, one of [`reply`], if it is done.
    fn replied(&self, request: u64) -> Option<u64>;
    /// The peer's request, once.
    fn requested(&self) -> Option<u64>;
    /// Says what came of it.
    fn reply(&self, request: u64, what: u64);
    /// Says something to the library's thread there: one of [`crate::socket::Message`].
    fn say(&self, message: u32);
    /// What the peer has said, one after the other; at the end of the link [`crate::socket::Message::Break`].
    fn heard(&self) -> Option<u32>;
    /// The connection of the meeting is over: so is the link, when what is under way has come.
    fn late(&self);
    /// The end, with a last word, which is there, and all that was put, when this returns (or the peer is not).
    fn close(&self, last: Option<u32>);
}

/// What comes of a request for RDMA.
pub mod reply {
    /// It cannot be.
    pub const WRONG: u64 = 0;
    /// It is done.
    pub const DONE: u64 = 1;
    /// It may not be.
    pub const FORBIDDEN: u64 = 2;
}
