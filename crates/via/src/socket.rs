//! The socket of a connection: its two ends send each other's agents messages, and learn of its
//! end.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use fabric::sys;

use crate::process::Fd;
use crate::remote::link::Wire;

/// The messages on a connection's socket, once the connection exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Message {
    /// The agent must check what it waits for.
    Kick = 1,
    /// A message came for which no descriptor was posted.
    ReceiveQueueEmpty = 2,
    /// An RDMA write was not allowed.
    WriteForbidden = 3,
    /// An RDMA read likewise.
    ReadForbidden = 4,
    /// The sender ends the connection, by its program's wish.
    Disconnect = 5,
    /// The sender ends the connection because of an error.
    Break = 6,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This process ends it: `VipDisconnect`.
    Disconnected,
    /// An error has: the Virtual Interface is in state Error until the program disconnects it.
    Broken,
    /// The peer has ended it: as `Broken`, and the program is told (`VIP_ERROR_CONN_LOST`).
    Left,
    /// An error at the peer has, or the peer is gone: as `Left`.
    Lost,
}

/// A connection's socket. Its end is the connection's. Between hosts it carries no messages; the
/// link does.
pub struct Socket(Fd, Option<Arc<dyn Wire>>);

impl Socket {
    /// A connected socket, after the handshake.
    pub fn new(fd: OwnedFd, wire: Option<Arc<dyn Wire>>) -> Socket {
        Socket(Fd::new(fd), wire)
    }

    /// The descriptor to wait for messages.
    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Between hosts, the wire.
    pub(crate) fn wire(&self) -> Option<&Arc<dyn Wire>> {
        self.1.as_ref()
    }

    /// Sends a message, if there is room for it.
    pub fn send(&self, message: Message) {
        if let Some(wire) = &self.1 {
            return wire.say(message as u32);
        }
        let bytes = (message as u32).to_ne_bytes();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = sys::send(self.0.as_raw_fd(), bytes.as_ptr(), bytes.len(), flags);
    }

    /// The next message, if there is one; None at the end.
    pub(crate) fn receive(&self) -> Result<Option<u32>, sys::Errno> {
        if let Some(wire) = &self.1 {
            return wire.heard().map(Some).ok_or(sys::Errno::EAGAIN);
        }
        let mut bytes = [0; 4];
        match sys::recv(self.0.as_raw_fd(), bytes.as_mut_ptr(), bytes.len(), libc::MSG_DONTWAIT)? {
            0 => Ok(None),
            _ => Ok(Some(u32::from_ne_bytes(bytes))),
        }
    }

    /// Ends the connection.
    pub fn close(&self, how: End) {
        let last = match how {
            End::Disconnected => Some(Message::Disconnect),
            End::Broken => Some(Message::Break),
            End::Left | End::Lost => None,
        };
        match (&self.1, last) {
            (Some(wire), last) => wire.close(last.map(|last| last as u32)),
            (None, Some(last)) => self.send(last),
            (None, None) => {}
        }
        let _ = sys::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR);
    }
}
