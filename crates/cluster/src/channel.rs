//! The encrypted connection of two agents: Noise (noiseprotocol.org), pattern NNpsk0. Only a
//! process that has the cluster's key can make the first message, or understand it. The
//! connection's own keys are made anew each time, so a recording of it is of no use. Messages of
//! the handshake carry no data. The messages of an open connection are defined by its user
//! ([`Message`]): agents use [`Between`]; the daemons of an Ethernet between hosts (crate `ether`)
//! and Virtual Interfaces that meet (crate `cm`) have messages of their own.
//!
//! On the wire: frames, each behind two bytes of length.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState, TransportState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::key::Key;
use crate::wire::{Between, MOST, Message};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes that Noise adds to a message.
const TAG: usize = 16;
/// The most bytes of a frame.
const FRAME: usize = MOST + TAG;
/// The most bytes that wait to be sent: an agent that has not read so many is given up.
const WAITING: usize = 1 << 20;
/// The most time for connecting and for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The other agent has gone, or was never there.
    Gone,
    /// The other end does not have the same key.
    WrongKey,
    /// The other end has sent an impossible message.
    Garbled,
    /// It took too long.
    Late,
}

enum State {
    Connecting,
    Handshake(Box<HandshakeState>),
    Open(Box<TransportState>),
}

/// A connection to another agent, for messages of type `M`.
pub struct Channel<M = Between> {
    stream: TcpStream,
    /// The other host's address, as IPv6 has it.
    pub ip: [u8; 16],
    /// Whether this agent has made it.
    pub outgoing: bool,
    state: State,
    key: Key,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Messages that wait for the connection to open.
    later: Vec<M>,
    since: Instant,
    /// When a message was last sent or received.
    pub used: Instant,
}

impl<M: Message> Channel<M> {
    /// Begins to connect to the agent at an address, from `from` or from the address that the
    /// kernel chooses.
    pub fn connect(from: Option<IpAddr>, ip: [u8; 16], port: u16, key: &Key) -> io::Result<Channel<M>> {
        let address = Ipv6Addr::from(ip);
        let address = SocketAddr::new(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4), port);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Channel::new(socket.into(), ip, true, State::Connecting, key))
    }

    /// The same over a connection that is established.
    pub fn over(stream: TcpStream, ip: [u8; 16], key: &Key) -> io::Result<Channel<M>> {
        stream.set_nonblocking(true)?;
        Ok(Channel::new(stream, ip, true, State::Connecting, key))
    }

    /// Takes an accepted connection.
    pub fn accept(stream: TcpStream, ip: [u8; 16], key: &Key) -> io::Result<Channel<M>> {
        stream.set_nonblocking(true)?;
        let state = State::Handshake(Box::new(handshake(key, false)?));
        Ok(Channel::new(stream, ip, false, state, key))
    }

    fn new(stream: TcpStream, ip: [u8; 16], outgoing: bool, state: State, key: &Key) -> Channel<M> {
        let now = Instant::now();
        let _ = stream.set_nodelay(true);
        Channel {
            stream,
            ip,
            outgoing,
            state,
            key: *key,
            input: Vec::new(),
            output: Vec::new(),
            later: Vec::new(),
            since: now,
            used: now,
        }
    }

    /// Its descriptor.
    pub fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// The connection itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The connection underneath, when no more messages are to be sent: its end shows that the
    /// other process has ended.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Whether it waits to write.
    pub fn wants_to_write(&self) -> bool {
        !self.output.is_empty() || matches!(self.state, State::Connecting)
    }

    /// Whether both ends have shown that they have the key.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Sends a message; before the handshake is complete it waits.
    pub fn say(&mut self, message: M) -> Result<(), End> {
        self.used = Instant::now();
        match &mut self.state {
            State::Open(transport) => {
                let mut sealed = [0; FRAME];
                let len = transport.write_message(&message.bytes(), &mut sealed).map_err(|_| End::Garbled)?;
                self.put(&sealed[..len]);
                self.write()
            }
            _ => {
                self.later.push(message);
                if self.later.len() > WAITING / MOST { Err(End::Late) } else { Ok(()) }
            }
        }
    }

    fn put(&mut self, frame: &[u8]) {
        self.output.extend((frame.len() as u16).to_le_bytes());
        self.output.extend(frame);
    }

    fn write(&mut self) -> Result<(), End> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(End::Gone),
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(End::Gone),
            }
        }
        if self.output.len() > WAITING { Err(End::Late) } else { Ok(()) }
    }

    /// Sends and receives as far as is possible now, and calls `each` with every message that has
    /// come.
    pub fn go_on(&mut self, mut each: impl FnMut(M)) -> Result<(), End> {
        if matches!(self.state, State::Connecting) {
            self.connected()?;
        }
        if matches!(self.state, State::Connecting) {
            return self.in_time();
        }
        self.write()?;
        loop {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.gone()),
                Ok(got) => {
                    self.input.extend(&bytes[..got]);
                    self.take(&mut each)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.in_time(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(self.gone()),
            }
        }
    }

    /// A peer that closes after our first message has not understood it: most likely it has another
    /// key.
    fn gone(&self) -> End {
        match self.state {
            State::Handshake(_) if self.outgoing => End::WrongKey,
            _ => End::Gone,
        }
    }

    fn in_time(&self) -> Result<(), End> {
        if self.is_open() || self.since.elapsed() < HANDSHAKE { Ok(()) } else { Err(End::Late) }
    }

    /// Checks whether the connection is established, and begins the handshake.
    fn connected(&mut self) -> Result<(), End> {
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: an array of one.
        if unsafe { libc::poll(&mut poll, 1, 0) } < 1 {
            return Ok(());
        }
        if !matches!(self.stream.take_error(), Ok(None)) {
            return Err(End::Gone);
        }
        let mut handshake = handshake(&self.key, true).map_err(|_| End::Garbled)?;
        let mut first = [0; FRAME];
        let len = handshake.write_message(&[], &mut first).map_err(|_| End::Garbled)?;
        self.state = State::Handshake(Box::new(handshake));
        self.put(&first[..len]);
        self.write()
    }

    /// Takes the frames that are complete.
    fn take(&mut self, each: &mut impl FnMut(M)) -> Result<(), End> {
        while let Some((len, rest)) = self.input.split_first_chunk::<2>() {
            let len = usize::from(u16::from_le_bytes(*len));
            if len > FRAME {
                return Err(End::Garbled);
            }
            let Some(frame) = rest.get(..len) else { break };
            let frame = frame.to_vec();
            self.input.drain(..2 + len);
            if let Some(said) = self.frame(&frame)? {
                each(said);
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: &[u8]) -> Result<Option<M>, End> {
        let mut plain = [0; FRAME];
        match &mut self.state {
            State::Connecting => Err(End::Garbled),
            State::Handshake(handshake) => {
                handshake.read_message(frame, &mut plain).map_err(|_| End::WrongKey)?;
                if !handshake.is_handshake_finished() {
                    let mut answer = [0; FRAME];
                    let len = handshake.write_message(&[], &mut answer).map_err(|_| End::Garbled)?;
                    self.put(&answer[..len]);
                }
                self.open()?;
                self.write()?;
                Ok(None)
            }
            State::Open(transport) => {
                self.used = Instant::now();
                let len = transport.read_message(frame, &mut plain).map_err(|_| End::Garbled)?;
                M::parse(&plain[..len]).map(Some).ok_or(End::Garbled)
            }
        }
    }

    fn open(&mut self) -> Result<(), End> {
        let State::Handshake(handshake) = std::mem::replace(&mut self.state, State::Connecting) else {
            return Err(End::Garbled);
        };
        let transport = handshake.into_transport_mode().map_err(|_| End::Garbled)?;
        self.state = State::Open(Box::new(transport));
        let later = std::mem::take(&mut self.later);
        later.into_iter().try_for_each(|message| self.say(message))
    }
}

fn handshake(key: &Key, asks: bool) -> io::Result<HandshakeState> {
    let pattern = PATTERN.parse().expect("a pattern that snow knows");
    let builder = Builder::new(pattern).psk(0, key).map_err(io::Error::other)?;
    let state = if asks { builder.build_initiator() } else { builder.build_responder() };
    state.map_err(io::Error::other)
}
