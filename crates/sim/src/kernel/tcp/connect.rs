//! How TCP connections begin: names, connect(), listen() and accept() (`inet_bind`,
//! `__inet_stream_connect`, `inet_csk_accept`).

use std::collections::VecDeque;

use syscalls::Errno;

use super::super::objects::{Addr, Kind, Linked, Parcel, State, Tcp, Urgent};
use super::super::state::{Kernel, Outcome, Patience, Tid};
use super::super::user;

/// Where ports begin that nobody asked for.
const EPHEMERAL: u16 = 32_768;
const EPHEMERAL_END: u16 = 60_999;
const LOCALHOST: u32 = 0x7f00_0001;

impl Addr {
    /// Of a `struct sockaddr_in`.
    pub(in crate::kernel) fn of(at: usize, len: usize) -> Result<(u16, Addr), Errno> {
        if len < size_of::<libc::sockaddr_in>() {
            return Err(Errno::EINVAL);
        }
        let address: libc::sockaddr_in = user::get(at)?;
        let (ip, port) = (u32::from_be(address.sin_addr.s_addr), u16::from_be(address.sin_port));
        Ok((address.sin_family, Addr { ip, port }))
    }

    /// As a `struct sockaddr_in`.
    pub(in crate::kernel) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<libc::sockaddr_in>()];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.ip.to_be_bytes());
        bytes
    }

    fn is_local(self) -> bool {
        // Those of 10.0.0.0/8 are of network namespaces.
        self.ip == 0 || matches!(self.ip >> 24, 10 | 127)
    }
}

impl Kernel {
    /// A new socket.
    pub(in crate::kernel) fn new_tcp(&mut self, whose: (u32, u32)) -> u64 {
        let (sndbuf, rcvbuf) = (self.limits.sndbuf, self.limits.rcvbuf);
        let common = self.common(whose, sndbuf, rcvbuf);
        let stamp = self.dice.next() as u32;
        self.tcps.add(Tcp {
            common,
            state: State::Close,
            linked: Linked::Unconnected,
            local: Addr::default(),
            remote: Addr::default(),
            holds_port: false,
            bound: false,
            bound_ip: false,
            peer: 0,
            connects: false,
            queue: VecDeque::new(),
            copied: 0,
            received: 0,
            done: false,
            urgent: Urgent::None,
            urgent_at: 0,
            told: 0,
            unacked: VecDeque::new(),
            acked: 0,
            sent: 0,
            written: 0,
            allowed: 0,
            urgent_sent: 0,
            fin: false,
            fin_sent: false,
            fin_acked: false,
            no_space: false,
            corked: false,
            cork_until: None,
            arrives: 0,
            backlog: 0,
            accepted: VecDeque::new(),
            listener: 0,
            saves_syn: false,
            saved_syn: None,
            stamp,
            edges: VecDeque::new(),
            segments_out: 0,
            segments_in: 0,
        })
    }

    pub(in crate::kernel) fn tcp_bind(&mut self, id: u64, at: usize, len: usize) -> Result<usize, Errno> {
        let (family, mut address) = Addr::of(at, len)?;
        // AF_UNSPEC is let pass with INADDR_ANY (__inet_bind).
        if i32::from(family) != libc::AF_INET && !(family == 0 && address.ip == 0) {
            return Err(Errno::EAFNOSUPPORT);
        }
        if !address.is_local() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if self.tcps[id].state != State::Close || self.tcps[id].holds_port {
            return Err(Errno::EINVAL);
        }
        // A port that was chosen here is given back with the connection (SOCK_BINDPORT_LOCK).
        let bound = address.port != 0;
        if address.port == 0 {
            address.port = self.free_port()?;
        } else if self.is_taken(id, address) {
            return Err(Errno::EADDRINUSE);
        }
        let tcp = &mut self.tcps[id];
        (tcp.local, tcp.holds_port, tcp.bound, tcp.bound_ip) = (address, true, bound, address.ip != 0);
        Ok(0)
    }

    fn is_taken(&self, id: u64, at: Addr) -> bool {
        let reuses = |tcp: &Tcp| {
            let set =
                |name| tcp.common.options.get(&(libc::SOL_SOCKET, name)).is_some_and(|&value| value != 0);
            set(libc::SO_REUSEADDR) && tcp.state != State::Listen
        };
        let may = reuses(&self.tcps[id]);
        self.tcps.iter().any(|(other, tcp)| {
            let overlaps = tcp.local.ip == at.ip || tcp.local.ip == 0 || at.ip == 0;
            other != id && tcp.holds_port && tcp.local.port == at.port && overlaps && !(may && reuses(tcp))
        })
    }

    fn free_port(&mut self) -> Result<u16, Errno> {
        for _ in EPHEMERAL..=EPHEMERAL_END {
            self.port =
                if (EPHEMERAL..EPHEMERAL_END).contains(&self.port) { self.port + 1 } else { EPHEMERAL };
            let port = self.port;
            if !self.tcps.iter().any(|(_, tcp)| tcp.local.port == port) {
                return Ok(port);
            }
        }
        Err(Errno::EADDRNOTAVAIL)
    }

    pub(in crate::kernel) fn tcp_listen(&mut self, id: u64, backlog: usize) -> Result<usize, Errno> {
        let most = self.limits.somaxconn;
        let tcp = &self.tcps[id];
        if tcp.linked != Linked::Unconnected || !matches!(tcp.state, State::Close | State::Listen) {
            return Err(Errno::EINVAL);
        }
        if !tcp.holds_port {
            let port = self.free_port()?;
            self.tcps[id].local.port = port;
        }
        let tcp = &mut self.tcps[id];
        tcp.holds_port = true;
        tcp.backlog = backlog.min(most);
        tcp.state = State::Listen;
        Ok(0)
    }

    pub(in crate::kernel) fn tcp_connect(
        &mut self,
        tid: Tid,
        id: u64,
        (at, len): (usize, usize),
        patience: Patience,
    ) -> Outcome {
        let mut result = Errno::EALREADY;
        if !self.sleep(tid).begun {
            match self.begin_connect(id, at, len) {
                Ok(Some(now)) => result = now,
                Ok(None) => return Outcome::Done(Ok(0)),
                Err(errno) => return Outcome::Done(Err(errno)),
            }
        } else if self.sleep(tid).done > 0 {
            result = Errno::EINPROGRESS;
        }
        // Whether this call has begun it is kept in `done`, for the next attempt.
        self.sleep(tid).done = usize::from(result == Errno::EINPROGRESS);
        let tcp = &mut self.tcps[id];
        if matches!(tcp.state, State::SynSent | State::SynRecv) {
            return if self.wait(tid, patience.timeout) {
                Outcome::Sleep
            } else {
                Outcome::Done(Err(result))
            };
        }
        if tcp.state == State::Close {
            let error = tcp.common.error.take().unwrap_or(Errno::ECONNABORTED);
            tcp.linked = Linked::Unconnected;
            self.disconnect(id);
            return Outcome::Done(Err(error));
        }
        tcp.linked = Linked::Connected;
        Outcome::Done(Ok(0))
    }

    /// The first half of connect(): the error that a call ends with which does not sleep; `None` if
    /// all is done.
    fn begin_connect(&mut self, id: u64, at: usize, len: usize) -> Result<Option<Errno>, Errno> {
        if len < 2 {
            return Err(Errno::EINVAL);
        }
        if user::get::<u16>(at)? == libc::AF_UNSPEC as u16 {
            self.stop_listening(id);
            self.disconnect(id);
            self.tcps[id].linked = Linked::Unconnected;
            return Ok(None);
        }
        match self.tcps[id].linked {
            Linked::Disconnecting => return Err(Errno::EINVAL),
            Linked::Connected => return Err(Errno::EISCONN),
            Linked::Connecting => return Ok(Some(Errno::EALREADY)),
            Linked::Unconnected => {}
        }
        if self.tcps[id].state != State::Close {
            return Err(Errno::EISCONN);
        }
        let (family, mut remote) = Addr::of(at, len)?;
        if i32::from(family) != libc::AF_INET {
            return Err(Errno::EAFNOSUPPORT);
        }
        if !remote.is_local() {
            return Err(Errno::ENETUNREACH);
        }
        if remote.ip == 0 {
            remote.ip = LOCALHOST;
        }
        if !self.tcps[id].holds_port {
            self.tcps[id].local.port = self.free_port()?;
        }
        let tcp = &mut self.tcps[id];
        tcp.holds_port = true;
        if tcp.local.ip == 0 {
            tcp.local.ip = LOCALHOST;
        }
        tcp.remote = remote;
        tcp.state = State::SynSent;
        tcp.linked = Linked::Connecting;
        tcp.common.error = None;
        let allowed = tcp.common.rcvbuf as u64;
        tcp.told = allowed;
        self.post(id, Parcel::Syn(id));
        Ok(Some(Errno::EINPROGRESS))
    }

    /// Takes a connection; the socket that it becomes the caller gives a descriptor.
    pub(in crate::kernel) fn tcp_accept(
        &mut self,
        tid: Tid,
        id: u64,
        timeout: Option<u64>,
    ) -> Result<u64, Outcome> {
        let tcp = &mut self.tcps[id];
        if tcp.state != State::Listen {
            return Err(Outcome::Done(Err(Errno::EINVAL)));
        }
        let Some(child) = tcp.accepted.pop_front() else {
            return Err(self.block(tid, timeout, Errno::EAGAIN));
        };
        self.changes += 1;
        self.tcps[child].listener = 0;
        Ok(child)
    }

    /// Own address, or the peer's (`inet_getname`).
    pub(in crate::kernel) fn tcp_name(&self, id: u64, peer: bool) -> Result<Vec<u8>, Errno> {
        let tcp = &self.tcps[id];
        match peer {
            false => Ok(tcp.local.bytes()),
            true if tcp.remote.port == 0 || matches!(tcp.state, State::Close | State::SynSent) => {
                Err(Errno::ENOTCONN)
            }
            true => Ok(tcp.remote.bytes()),
        }
    }

    /// The socket of a file.
    pub(in crate::kernel) fn tcp_of(&self, file: u64) -> Option<u64> {
        match self.files[file].kind {
            Kind::Tcp(id) => Some(id),
            _ => None,
        }
    }
}
