//! Steps that ask: readiness, options, addresses, and what sock_diag says.

use syscalls::Sysno;

use super::program::{Checked, Class, Program};
use super::steps::{SOCKETS, TCP, forget_own, shown};

impl Program {
    pub fn control(&mut self) -> Checked {
        let (Some(set), Some(slot)) = (self.pick(&[Class::Set]), self.any()) else { return Ok(()) };
        let set = if self.dice.once_in(40) { slot } else { set };
        let (sets, fds) = (self.slots[set].fds, self.slots[slot].fds);
        let op = self.dice.of(&[
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
            9,
        ]);
        let mut events = self.dice.some(&[
            libc::EPOLLIN as u32,
            libc::EPOLLOUT as u32,
            libc::EPOLLET as u32,
            libc::EPOLLRDHUP as u32,
        ]);
        if self.dice.once_in(4) {
            events |= self.dice.some(&[
                libc::EPOLLPRI as u32,
                libc::EPOLLRDNORM as u32,
                libc::EPOLLWRNORM as u32,
                libc::EPOLLHUP as u32,
                libc::EPOLLONESHOT as u32,
            ]);
        }
        if self.dice.once_in(12) {
            events |= libc::EPOLLEXCLUSIVE as u32;
        }
        // Registrations of descriptors that were closed go on, under a name that no other has.
        self.sent += usize::from(self.sent < 1000);
        let data = (slot + 100 * self.dice.below(1000)) as u64;
        let event = libc::epoll_event { events, u64: data };
        let at = &raw const event as usize;
        self.plain(
            format!("epoll_ctl(#{set}, {op}, #{slot}, {events:#x}, {data})"),
            Sysno::epoll_ctl,
            |world| [sets[world], op as usize, fds[world], at, 0, 0],
        )?;
        Ok(())
    }

    pub fn wait(&mut self) -> Checked {
        let Some(set) = self.pick(&[Class::Set]) else { return Ok(()) };
        let fds = self.slots[set].fds;
        let most = self.dice.of(&[16, 16, 16, 1, 2, 3]);
        self.both(format!("epoll_wait(#{set}, {most})"), |world, index| {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
            let answer =
                world.call(Sysno::epoll_pwait, [fds[index], events.as_mut_ptr() as usize, most, 0, 0, 8]);
            let each = |event: &libc::epoll_event| {
                let (events, data) = (event.events, event.u64);
                [events.to_ne_bytes().to_vec(), (data as u32).to_ne_bytes().to_vec()].concat()
            };
            let count = answer.unwrap_or(0);
            shown(answer, &events[..count].iter().flat_map(each).collect::<Vec<u8>>())
        })?;
        Ok(())
    }

    pub fn poll(&mut self) -> Checked {
        let bits =
            [libc::POLLIN, libc::POLLOUT, libc::POLLPRI, libc::POLLRDHUP, libc::POLLRDNORM, libc::POLLWRBAND];
        let bits = bits.map(|bit| u32::from(bit as u16));
        let chosen: Vec<(usize, i16)> = (0..self.slots.len().min(1 + self.dice.below(6)))
            .map(|_| (self.dice.below(self.slots.len()), self.dice.some(&bits) as i16))
            .collect();
        let fds: Vec<[usize; 2]> = chosen.iter().map(|&(slot, _)| self.slots[slot].fds).collect();
        let what: Vec<String> = chosen.iter().map(|&(slot, events)| format!("#{slot}:{events:x}")).collect();
        self.both(format!("ppoll({})", what.join(" ")), |world, index| {
            let entry = |(&(_, events), fds): (&(usize, i16), &[usize; 2])| libc::pollfd {
                fd: fds[index] as i32,
                events,
                revents: 0,
            };
            let mut entries: Vec<libc::pollfd> = chosen.iter().zip(&fds).map(entry).collect();
            let zero = [0u64; 2];
            let args = [entries.as_mut_ptr() as usize, entries.len(), zero.as_ptr() as usize, 0, 8, 0];
            let answer = world.call(Sysno::ppoll, args);
            shown(answer, &entries.iter().flat_map(|entry| entry.revents.to_ne_bytes()).collect::<Vec<u8>>())
        })?;
        Ok(())
    }

    pub fn select(&mut self) -> Checked {
        let Some(slot) = self.any() else { return Ok(()) };
        let fds = self.slots[slot].fds;
        self.both(format!("pselect6(#{slot})"), |world, index| {
            let fd = fds[index];
            let mut sets = [[0u64; 16]; 3];
            sets.iter_mut().for_each(|set| set[fd / 64] |= 1 << (fd % 64));
            let at = sets.each_mut().map(|set| set.as_mut_ptr() as usize);
            let zero = [0u64; 2];
            let args = [fd + 1, at[0], at[1], at[2], zero.as_ptr() as usize, 0];
            let answer = world.call(Sysno::pselect6, args);
            shown(answer, &sets.map(|set| (set[fd / 64] >> (fd % 64) & 1) as u8))
        })?;
        Ok(())
    }

    pub fn set_option(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        let fds = self.slots[slot].fds;
        let linger = [1i32, 0];
        let lowat = [self.dice.of(&[1, 2, 100, 1000, 0]), 0];
        let (on, off) = ([1i32, 0], [0i32, 0]);
        let sol = libc::SOL_SOCKET;
        let (what, level, name, value, len) = self.dice.of(&[
            ("SO_LINGER 0", sol, libc::SO_LINGER, linger, 8),
            ("SO_LINGER off", sol, libc::SO_LINGER, off, 8),
            ("SO_RCVLOWAT", sol, libc::SO_RCVLOWAT, lowat, 4),
            ("SO_RCVLOWAT", sol, libc::SO_RCVLOWAT, lowat, 4),
            ("SO_OOBINLINE", sol, libc::SO_OOBINLINE, on, 4),
            ("SO_OOBINLINE off", sol, libc::SO_OOBINLINE, off, 4),
            ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY, on, 4),
            ("SO_REUSEADDR", sol, libc::SO_REUSEADDR, on, 4),
            ("SO_KEEPALIVE", sol, libc::SO_KEEPALIVE, on, 4),
            ("SO_PASSCRED", sol, libc::SO_PASSCRED, on, 4),
            ("SO_PASSCRED off", sol, libc::SO_PASSCRED, off, 4),
            ("SO_PEEK_OFF", sol, libc::SO_PEEK_OFF, lowat, 4),
            ("SO_PEEK_OFF off", sol, libc::SO_PEEK_OFF, [-1, 0], 4),
            ("nonsense", sol, 999, on, 4),
            ("SO_RCVLOWAT short", sol, libc::SO_RCVLOWAT, on, 3),
        ]);
        self.plain(format!("setsockopt(#{slot}, {what}, {})", value[0]), Sysno::setsockopt, |world| {
            [fds[world], level as usize, name as usize, value.as_ptr() as usize, len, 0]
        })?;
        Ok(())
    }

    pub fn option(&mut self, slot: usize, what: &str, level: i32, name: i32) -> Checked {
        let fds = self.slots[slot].fds;
        self.both(format!("getsockopt(#{slot}, {what})"), |world, index| {
            let (mut value, mut len) = ([0u8; 16], 16i32);
            let at = value.as_mut_ptr() as usize;
            let args = [fds[index], level as usize, name as usize, at, &raw mut len as usize, 0];
            let answer = world.call(Sysno::getsockopt, args);
            let mut seen = value.to_vec();
            seen.extend((len as u8).to_ne_bytes());
            shown(answer, &seen)
        })?;
        Ok(())
    }

    pub fn get_option(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        let sol = libc::SOL_SOCKET;
        let (what, level, name) = self.dice.of(&[
            ("SO_ERROR", sol, libc::SO_ERROR),
            ("SO_ERROR", sol, libc::SO_ERROR),
            ("SO_TYPE", sol, libc::SO_TYPE),
            ("SO_DOMAIN", sol, libc::SO_DOMAIN),
            ("SO_PROTOCOL", sol, libc::SO_PROTOCOL),
            ("SO_ACCEPTCONN", sol, libc::SO_ACCEPTCONN),
            ("SO_RCVLOWAT", sol, libc::SO_RCVLOWAT),
            ("SO_LINGER", sol, libc::SO_LINGER),
            ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY),
            ("SO_OOBINLINE", sol, libc::SO_OOBINLINE),
            ("SO_RCVTIMEO", sol, libc::SO_RCVTIMEO),
            ("SO_PASSCRED", sol, libc::SO_PASSCRED),
            ("SO_PEEK_OFF", sol, libc::SO_PEEK_OFF),
            ("SO_PEERCRED", sol, libc::SO_PEERCRED),
            ("SO_REUSEADDR", sol, libc::SO_REUSEADDR),
            ("nonsense", sol, 999),
        ]);
        self.option(slot, what, level, name)
    }

    pub fn ioctl(&mut self, slot: usize, what: &str, request: usize) -> Checked {
        let fds = self.slots[slot].fds;
        self.both(format!("ioctl(#{slot}, {what})"), |world, index| {
            let mut value = -7i32;
            let answer = world.call(Sysno::ioctl, [fds[index], request, &raw mut value as usize, 0, 0, 0]);
            shown(answer, &value.to_ne_bytes())
        })?;
        Ok(())
    }

    pub fn ask(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        self.state_of(slot)
    }

    /// Everything that can be asked about a socket without changing it.
    pub fn state_of(&mut self, slot: usize) -> Checked {
        let (fds, class) = (self.slots[slot].fds, self.slots[slot].class);
        if matches!(class, Class::Event | Class::Set) {
            return Ok(());
        }
        self.ioctl(slot, "FIONREAD", libc::FIONREAD as usize)?;
        for number in [Sysno::getpeername, Sysno::getsockname] {
            self.both(format!("{}(#{slot})", number.name()), |world, index| {
                let (mut name, mut len) = ([0u8; 110], 110i32);
                let at = name.as_mut_ptr() as usize;
                let answer = world.call(number, [fds[index], at, &raw mut len as usize, 0, 0, 0]);
                forget_own(&mut name);
                shown(answer, &[&name[..16], &[len as u8]].concat())
            })?;
        }
        if class != Class::Tcp {
            return Ok(());
        }
        self.ioctl(slot, "SIOCATMARK", 0x8905)?;
        let mut state = 0;
        self.both(format!("getsockopt(#{slot}, TCP_INFO)"), |world, index| {
            let (mut info, mut len) = ([0u8; 232], 232i32);
            let at = info.as_mut_ptr() as usize;
            let (level, name) = (libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize);
            let answer =
                world.call(Sysno::getsockopt, [fds[index], level, name, at, &raw mut len as usize, 0]);
            state = info[0];
            // State, bytes_acked and bytes_received, what is not sent, bytes_sent.
            let mut seen = vec![info[0]];
            for range in [120..136, 144..148, 200..208] {
                seen.extend(&info[range]);
            }
            // What means nothing: of one that listens, all; of one that is closed, what is not
            // sent.
            match info[0] {
                10 => seen.truncate(1),
                7 => seen[17..21].fill(0),
                _ => {}
            }
            shown(answer, &seen)
        })?;
        // Of one that is closed it is the difference of two numbers that mean nothing any more
        // (tcp_disconnect).
        if state == 7 { Ok(()) } else { self.ioctl(slot, "TIOCOUTQ", libc::TIOCOUTQ as usize) }
    }

    /// Asks sock_diag for the other end of a connection, or for its own.
    pub fn diag(&mut self) -> Checked {
        let Some(slot) = self.pick(TCP) else { return Ok(()) };
        let (fds, own) = (self.slots[slot].fds, self.dice.once_in(3));
        let mut skipped = false;
        self.both(format!("sock_diag(#{slot}, own: {own})"), |world, index| {
            let mut names = [[0u8; 16]; 2];
            for (number, name) in [Sysno::getsockname, Sysno::getpeername].into_iter().zip(&mut names) {
                let mut len = 16i32;
                let args = [fds[index], name.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0];
                let _ = world.call(number, args);
            }
            if !own {
                names.reverse();
            }
            let mut request = [0u8; 72];
            request[0] = 72;
            request[4] = 20;
            request[6] = 1;
            request[16] = libc::AF_INET as u8;
            request[17] = libc::IPPROTO_TCP as u8;
            request[20..24].fill(0xff);
            request[64..72].fill(0xff);
            for (name, (port, ip)) in names.iter().zip([(24, 28), (26, 44)]) {
                request[port..port + 2].copy_from_slice(&name[2..4]);
                request[ip..ip + 4].copy_from_slice(&name[4..8]);
            }
            let kind = libc::SOCK_RAW as usize | libc::SOCK_CLOEXEC as usize;
            let protocol = libc::NETLINK_SOCK_DIAG as usize;
            let answer = world.call(Sysno::socket, [libc::AF_NETLINK as usize, kind, protocol, 0, 0, 0]);
            let Ok(fd) = answer else { return shown(answer, &[]) };
            let sent = world.call(Sysno::sendto, [fd, request.as_ptr() as usize, 72, 0, 0, 0]);
            let mut answer = [0u8; 512];
            let at = answer.as_mut_ptr() as usize;
            let _ = world.call(Sysno::recvfrom, [fd, at, 512, libc::MSG_DONTWAIT as usize, 0, 0]);
            let _ = world.call(Sysno::close, [fd, 0, 0, 0, 0, 0]);
            // The model keeps nothing of a connection that waits for its time to be over
            // (TIME_WAIT, and FIN_WAIT2 of one that was closed).
            let (state, inode) = (answer[17], &answer[84..88]);
            skipped |= index == 0 && answer[4] == 20 && (state == 6 || state == 5 && inode == [0; 4]);
            // Whether FIN counts as unread depends on the segment that it came with.
            if matches!(state, 8 | 9 | 11) {
                answer[72..76].fill(0);
            }
            let (state, inode) = (answer[17], &answer[84..88]);
            let has_cookie = answer[60..68].iter().any(|&byte| byte != 0);
            let has_inode = inode.iter().any(|&byte| byte != 0);
            let mut seen = vec![answer[4], state, u8::from(has_cookie), u8::from(has_inode)];
            match answer[4] {
                20 => seen.extend([&answer[24..28], &answer[40..44], &answer[72..84]].concat()),
                _ => seen = answer[16..20].to_vec(),
            }
            shown(sent, if skipped { &[] } else { &seen })
        })?;
        Ok(())
    }
}
