//! Where the workers of a group say hello to the caller's process.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::acceptor::{PATIENCE, answer_each};
use crate::event::Event;
use crate::messages::{self, Hello};
use crate::running::Flag;
use crate::worker::Control;

/// More bytes than any hello has.
const HELLO_MOST: usize = 4096;

/// The place.
pub struct Reception {
    at: SocketAddr,
    closed: Arc<Flag>,
}

impl Reception {
    /// Opens it at this address, for workers that know the token; reports them as events.
    pub fn open(address: IpAddr, token: &str, events: &Sender<Event>) -> io::Result<Reception> {
        let listener = TcpListener::bind((address, 0))?;
        let (at, closed) = (listener.local_addr()?, Arc::new(Flag::default()));
        let (token, events) = (token.to_string(), events.clone());
        answer_each(
            "shunt-hello",
            &closed,
            move || listener.accept(),
            move |(stream, _)| admit(stream, &token, &events),
        )?;
        Ok(Reception { at, closed })
    }

    /// Where it is, for tickets.
    pub fn address(&self) -> String {
        self.at.to_string()
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.closed.set();
        let _ = TcpStream::connect_timeout(&self.at, Duration::from_secs(1)); // so that the thread looks
    }
}

/// A worker that does not know the secret gets no answer.
fn admit(stream: TcpStream, token: &str, events: &Sender<Event>) {
    let prepared = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
    let mut control = Control::Tcp(stream);
    if prepared.is_ok()
        && let Ok(hello) = messages::receive_most::<Hello>(&mut control, HELLO_MOST)
        && hello.token == token
        && let Control::Tcp(stream) = &control
        && stream.set_read_timeout(None).is_ok()
    {
        let _ = events.send(Event::Came(hello.worker, control, hello)); // the group may be gone
    }
}
