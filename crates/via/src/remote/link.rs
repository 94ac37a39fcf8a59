//! The way to a peer on another host, and the results of requests there.

use fabric::shm::Map;

/// The way to a peer on another host: a link, of which one end's segment is this one's. Everything
/// that is put becomes visible there in the order put (rule F1).
pub trait Wire: Send + Sync {
    /// The segment that the peer writes into.
    fn mine(&self) -> Map;
    /// As large as the peer's segment: it has everything that this end has written there.
    fn shadow(&self) -> Map;
    /// Brings bytes of the shadow to the peer.
    fn bytes(&self, offset: usize, len: usize);
    /// Stores this word there.
    fn word(&self, offset: usize, value: u64);
    /// Stimulates a tripwire there; the peer itself checks whether it is armed.
    fn stimulate(&self, offset: usize, interest: u64);
    /// From now on everything that is put goes together, as far as possible, when [`Wire::let_go`]
    /// is called.
    fn hold(&self);
    /// Undoes [`Wire::hold`].
    fn let_go(&self);
    /// Handles messages that have come.
    fn poll(&self);
    /// Asks the peer for an answer, which comes behind everything that it has put before it is
    /// asked. Returns the question's number.
    fn ask(&self) -> u64;
    /// The number of the last question that it has answered.
    fn answered(&self) -> u64;
    /// Has the peer carry out the request that was put at [`crate::segment::at::ASKED`] there.
    /// Returns the request's number.
    fn request(&self) -> u64;
    /// The result, one of [`reply`], if it is done.
    fn replied(&self, request: u64) -> Option<u64>;
    /// The number of the peer's request, once.
    fn requested(&self) -> Option<u64>;
    /// Sends the result of a request.
    fn reply(&self, request: u64, what: u64);
    /// Sends a message to the library's thread there: one of [`crate::socket::Message`].
    fn say(&self, message: u32);
    /// The next message of the peer; at the end of the link [`crate::socket::Message::Break`].
    fn heard(&self) -> Option<u32>;
    /// The connection of the handshake is over: the link ends, too, when what is under way has
    /// arrived.
    fn late(&self);
    /// Ends the link, with a last message. When this returns, the message and everything that was
    /// put has arrived (or the peer is gone).
    fn close(&self, last: Option<u32>);
}

/// Results of a request for RDMA.
pub mod reply {
    /// The request is malformed.
    pub const WRONG: u64 = 0;
    /// It is done.
    pub const DONE: u64 = 1;
    /// It is not allowed.
    pub const FORBIDDEN: u64 = 2;
}
