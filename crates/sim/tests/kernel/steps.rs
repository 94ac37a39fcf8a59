//! The steps that a random program can take.

use syscalls::Sysno;

use super::program::{Checked, Class, Program, Shown};

type Kind = fn(&mut Program) -> Checked;

/// Each with how often it is taken, compared with others.
pub const KINDS: &[(usize, Kind)] = &[
    (1, Program::new_tcp),
    (2, Program::new_connection),
    (1, Program::new_listener),
    (2, Program::connect),
    (2, Program::accept),
    (2, Program::new_pair),
    (1, Program::new_event),
    (1, Program::new_set),
    (1, Program::unix_names),
    (12, Program::send),
    (12, Program::receive),
    (2, Program::urgent),
    (3, Program::shutdown),
    (3, Program::close),
    (2, Program::dup),
    (3, Program::set_option),
    (4, Program::get_option),
    (6, Program::event),
    (8, Program::control),
    (12, Program::wait),
    (6, Program::poll),
    (3, Program::select),
    (3, Program::rights),
    (6, Program::ask),
    (2, Program::diag),
];

pub const SOCKETS: &[Class] = &[Class::Tcp, Class::Stream, Class::Packets, Class::Datagrams];
pub const TCP: &[Class] = &[Class::Tcp];
const NONBLOCK: usize = libc::SOCK_NONBLOCK as usize | libc::SOCK_CLOEXEC as usize;

fn sockaddr(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[0] = libc::AF_INET as u8;
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

/// Takes out of an address what each kernel has chosen for itself: a port, or a name (that of five
/// digits).
pub fn forget_own(name: &mut [u8]) {
    if name[0] == libc::AF_INET as u8 {
        name[2..4].fill(0);
    } else if name[3..8].iter().all(u8::is_ascii_hexdigit) && name[8] == 0 {
        name[3..8].fill(b'x');
    }
}

pub fn shown(answer: Result<usize, syscalls::Errno>, bytes: &[u8]) -> Shown {
    Shown { answer, bytes: bytes.to_vec() }
}

impl Program {
    /// Something to begin with.
    pub fn begin(&mut self) -> Checked {
        self.new_listener()?;
        self.new_connection()?;
        match self.dice.below(4) {
            0 => self.new_pair(),
            1 => self.new_event().and_then(|()| self.new_set()),
            2 => self.new_set(),
            _ => Ok(()),
        }
    }

    pub fn full(&self) -> bool {
        self.slots.len() >= 24
    }

    pub fn new_tcp(&mut self) -> Checked {
        if self.full() {
            return Ok(());
        }
        let made = self.makes(Class::Tcp, "socket(tcp)".into(), |world, _| {
            world.call(
                Sysno::socket,
                [libc::AF_INET as usize, libc::SOCK_STREAM as usize | NONBLOCK, 0, 0, 0, 0],
            )
        });
        made.map(drop)
    }

    pub fn new_listener(&mut self) -> Checked {
        self.new_tcp()?;
        let Some(slot) = self.pick(TCP) else { return Ok(()) };
        let fds = self.slots[slot].fds;
        let ip =
            [127, 1 + self.dice.below(200) as u8, self.dice.below(256) as u8, 1 + self.dice.below(250) as u8];
        let address = sockaddr(ip, 0);
        self.plain(format!("bind(#{slot})"), Sysno::bind, |world| {
            [fds[world], address.as_ptr() as usize, 16, 0, 0, 0]
        })?;
        let backlog = self.dice.of(&[0, 1, 8, 8, 8]);
        let heard = self.plain(format!("listen(#{slot}, {backlog})"), Sysno::listen, |world| {
            [fds[world], backlog, 0, 0, 0, 0]
        })?;
        if heard {
            let mut place = [vec![0u8; 16], vec![0u8; 16]];
            self.both(format!("getsockname(#{slot})"), |world, index| {
                let mut len = 16i32;
                let at = place[index].as_mut_ptr() as usize;
                let answer = world.call(Sysno::getsockname, [fds[index], at, &raw mut len as usize, 0, 0, 0]);
                // Ports are each kernel's own.
                let mut seen = place[index].clone();
                seen[2..4].fill(0);
                shown(answer, &seen)
            })?;
            self.places.push(place);
        }
        Ok(())
    }

    pub fn connect_to(&mut self, slot: usize, place: [Vec<u8>; 2], what: &str) -> Checked {
        let fds = self.slots[slot].fds;
        let len = place[0].len();
        self.plain(format!("connect(#{slot}, {what})"), Sysno::connect, |world| {
            [fds[world], place[world].as_ptr() as usize, len, 0, 0, 0]
        })?;
        Ok(())
    }

    pub fn connect(&mut self) -> Checked {
        let Some(slot) = self.pick(TCP) else { return Ok(()) };
        if self.dice.once_in(8) {
            // Nobody listens on port 1.
            let nowhere = sockaddr([127, 0, 0, 1], 1);
            return self.connect_to(slot, [nowhere.clone(), nowhere], "nowhere");
        }
        if self.dice.once_in(20) {
            let nobody = vec![0; 16];
            return self.connect_to(slot, [nobody.clone(), nobody], "unspec");
        }
        match self.places.len() {
            0 => Ok(()),
            count => {
                let index = self.dice.below(count);
                let place = self.places[index].clone();
                self.connect_to(slot, place, "listener")
            }
        }
    }

    pub fn new_connection(&mut self) -> Checked {
        if self.full() || self.places.is_empty() {
            return Ok(());
        }
        self.new_tcp()?;
        let (slot, index) = (self.slots.len() - 1, self.dice.below(self.places.len()));
        let place = self.places[index].clone();
        self.connect_to(slot, place, "listener")?;
        self.accept()
    }

    pub fn accept(&mut self) -> Checked {
        let classes = if self.dice.once_in(6) { SOCKETS } else { TCP };
        let Some(slot) = self.pick(classes) else { return Ok(()) };
        for _ in 0..if self.full() { 0 } else { 3 } {
            let slot = if self.dice.once_in(2) { slot } else { self.pick(TCP).unwrap_or(slot) };
            let fds = self.slots[slot].fds;
            let made = self.makes(self.slots[slot].class, format!("accept4(#{slot})"), |world, index| {
                world.call(Sysno::accept4, [fds[index], 0, 0, NONBLOCK, 0, 0])
            })?;
            if made.is_some() {
                break;
            }
        }
        Ok(())
    }

    pub fn new_pair(&mut self) -> Checked {
        if self.full() {
            return Ok(());
        }
        let (class, kind) = self.dice.of(&[
            (Class::Stream, libc::SOCK_STREAM),
            (Class::Packets, libc::SOCK_SEQPACKET),
            (Class::Datagrams, libc::SOCK_DGRAM),
        ]);
        let mut fds = [[0i32; 2]; 2];
        let made = self.makes(class, format!("socketpair({class:?})"), |world, index| {
            let at = fds[index].as_mut_ptr() as usize;
            let answer = world
                .call(Sysno::socketpair, [libc::AF_UNIX as usize, kind as usize | NONBLOCK, 0, at, 0, 0]);
            answer.map(|_| fds[index][0] as usize)
        })?;
        if made.is_some() {
            let second = [fds[0][1] as usize, fds[1][1] as usize];
            self.slots.push(super::program::Slot { class, fds: second });
        }
        Ok(())
    }

    pub fn new_event(&mut self) -> Checked {
        if self.full() {
            return Ok(());
        }
        let flags = NONBLOCK | self.dice.of(&[0, 1]);
        let count = self.dice.below(3);
        let made = self.makes(Class::Event, format!("eventfd2({count}, {flags:#x})"), |world, _| {
            world.call(Sysno::eventfd2, [count, flags, 0, 0, 0, 0])
        });
        made.map(drop)
    }

    pub fn new_set(&mut self) -> Checked {
        if self.full() {
            return Ok(());
        }
        let flags = libc::EPOLL_CLOEXEC as usize;
        self.makes(Class::Set, "epoll_create1".into(), |world, _| {
            world.call(Sysno::epoll_create1, [flags, 0, 0, 0, 0, 0])
        })?;
        for _ in 0..self.dice.below(6) {
            self.control()?;
        }
        Ok(())
    }

    /// UNIX sockets that have names: bind, listen, connect, sendto.
    pub fn unix_names(&mut self) -> Checked {
        if self.full() {
            return Ok(());
        }
        let (class, kind) = self.dice.of(&[
            (Class::Stream, libc::SOCK_STREAM),
            (Class::Packets, libc::SOCK_SEQPACKET),
            (Class::Datagrams, libc::SOCK_DGRAM),
        ]);
        let made = self.makes(class, format!("socket({class:?})"), |world, _| {
            world.call(Sysno::socket, [libc::AF_UNIX as usize, kind as usize | NONBLOCK, 0, 0, 0, 0])
        })?;
        let Some(slot) = made else { return Ok(()) };
        let unix = &[Class::Stream, Class::Packets, Class::Datagrams];
        let slot = if self.dice.once_in(8) { self.pick(unix).unwrap_or(slot) } else { slot };
        let fds = self.slots[slot].fds;
        let number = if self.dice.once_in(2) { self.names } else { self.dice.below(self.names + 1) };
        let mut address = vec![libc::AF_UNIX as u8, 0, 0];
        address.extend(format!("sim{}-{number}", std::process::id()).bytes());
        let len = address.len();
        let at = address.as_ptr() as usize;
        let place = |world: usize| [fds[world], at, len, 0, 0, 0];
        match self.dice.below(3) {
            0 => {
                self.names += 1;
                self.plain(format!("bind(#{slot}, {number})"), Sysno::bind, place)?;
                let backlog = self.dice.of(&[0, 1, 5]);
                self.plain(format!("listen(#{slot}, {backlog})"), Sysno::listen, |world| {
                    [fds[world], backlog, 0, 0, 0, 0]
                })?;
            }
            1 => {
                self.plain(format!("connect(#{slot}, {number})"), Sysno::connect, place)?;
            }
            _ => {
                let bytes = [number as u8; 5];
                self.plain(format!("sendto(#{slot}, {number})"), Sysno::sendto, |world| {
                    [fds[world], bytes.as_ptr() as usize, 5, libc::MSG_NOSIGNAL as usize, at, len]
                })?;
            }
        }
        Ok(())
    }
}
