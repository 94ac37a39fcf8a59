//! Steps that send, receive and end things.

use syscalls::Sysno;

use super::program::{Checked, Class, Program, Slot};
use super::steps::{SOCKETS, TCP, forget_own, shown};

/// What control data says, but for the numbers of descriptors, which are apart.
fn parcels(control: &[u64], len: usize) -> (Vec<u8>, Vec<i32>) {
    let (mut seen, mut numbers, mut at) = (Vec::new(), Vec::new(), 0);
    let words: Vec<i32> = control.iter().flat_map(|&word| [word as i32, (word >> 32) as i32]).collect();
    while at + 16 <= len {
        let size = words[at / 4] as usize;
        seen.extend([words[at / 4], words[at / 4 + 3]].map(|word| word as u8));
        let values = &words[at / 4 + 4..(at + size.max(16)) / 4];
        match words[at / 4 + 3] {
            libc::SCM_RIGHTS => numbers.extend(values),
            _ => seen.extend(values.iter().flat_map(|value| value.to_ne_bytes())),
        }
        at += size.max(16).next_multiple_of(8);
    }
    (seen, numbers)
}

impl Program {
    pub fn send(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        let (fds, tcp) = (self.slots[slot].fds, self.slots[slot].class == Class::Tcp);
        let len = if tcp { self.dice.below(400) } else { self.dice.below(150) };
        let len = if self.dice.once_in(12) { 0 } else { len };
        self.sent += 1;
        if self.sent > 60 && !tcp {
            // UNIX sockets count the kernel's own memory, which the model only guesses: they are
            // not filled.
            return Ok(());
        }
        let bytes: Vec<u8> = (0..len).map(|at| (self.sent * 31 + at) as u8).collect();
        let at = bytes.as_ptr() as usize;
        let quiet = libc::MSG_NOSIGNAL as usize;
        match self.dice.below(4) {
            0 => {
                let half = len / 2;
                let iov = [[at, half], [at + half, len - half]];
                self.plain(format!("writev(#{slot}, {len})"), Sysno::writev, |world| {
                    [fds[world], iov.as_ptr() as usize, 2, 0, 0, 0]
                })?;
            }
            1 => {
                self.plain(format!("write(#{slot}, {len})"), Sysno::write, |world| {
                    [fds[world], at, len, 0, 0, 0]
                })?;
            }
            2 => {
                self.plain(format!("sendto(#{slot}, {len})"), Sysno::sendto, |world| {
                    [fds[world], at, len, quiet | libc::MSG_DONTWAIT as usize, 0, 0]
                })?;
            }
            _ => {
                let iov = [libc::iovec { iov_base: at as *mut _, iov_len: len }];
                // SAFETY: all zeroes is a valid msghdr.
                let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
                message.msg_iov = iov.as_ptr().cast_mut();
                message.msg_iovlen = 1;
                self.plain(format!("sendmsg(#{slot}, {len})"), Sysno::sendmsg, |world| {
                    [fds[world], &raw const message as usize, quiet, 0, 0, 0]
                })?;
            }
        }
        Ok(())
    }

    pub fn receive(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        let fds = self.slots[slot].fds;
        let len = self.dice.of(&[0, 1, 3, 50, 200, 500, 2000, 100_000]);
        let mut buffer = vec![0u8; len];
        let bits = [libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_WAITALL, libc::MSG_DONTWAIT];
        let mut flags = 0;
        for bit in bits {
            if self.dice.once_in(4) {
                flags |= bit as usize;
            }
        }
        if self.dice.once_in(3) {
            self.both(format!("read(#{slot}, {len})"), |world, index| {
                buffer.fill(0xee);
                let answer =
                    world.call(Sysno::read, [fds[index], buffer.as_mut_ptr() as usize, len, 0, 0, 0]);
                shown(answer, &buffer)
            })?;
        } else if self.dice.once_in(2) {
            self.both(format!("recvfrom(#{slot}, {len}, {flags:#x})"), |world, index| {
                buffer.fill(0xee);
                let at = buffer.as_mut_ptr() as usize;
                let answer = world.call(Sysno::recvfrom, [fds[index], at, len, flags, 0, 0]);
                shown(answer, &buffer)
            })?;
        } else {
            self.receive_message(slot, len, flags)?;
        }
        Ok(())
    }

    /// recvmsg() with room for an address and for one descriptor or none.
    pub fn receive_message(&mut self, slot: usize, len: usize, flags: usize) -> Checked {
        let fds = self.slots[slot].fds;
        let mut buffer = vec![0u8; len];
        let room = self.dice.of(&[0, 16, 24, 24, 32, 48, 56]);
        let flags = flags | libc::MSG_CMSG_CLOEXEC as usize;
        let mut got: [Vec<i32>; 2] = Default::default();
        self.both(format!("recvmsg(#{slot}, {len}, {flags:#x}, control {room})"), |world, index| {
            buffer.fill(0xee);
            let mut name = [0u8; 110];
            let mut control = [0u64; 8];
            let mut iov = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len }];
            // SAFETY: all zeroes is a valid msghdr.
            let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
            message.msg_iov = iov.as_mut_ptr();
            message.msg_iovlen = 1;
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = 110;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = room;
            let answer = world.call(Sysno::recvmsg, [fds[index], &raw mut message as usize, flags, 0, 0, 0]);
            let mut seen = buffer.clone();
            if answer.is_ok() {
                forget_own(&mut name);
                seen.splice(0..0, name[..message.msg_namelen as usize].iter().copied());
                seen.splice(0..0, (message.msg_flags as u32).to_ne_bytes());
                seen.splice(0..0, (message.msg_controllen as u32).to_ne_bytes());
                let (said, numbers) = parcels(&control, message.msg_controllen);
                seen.splice(0..0, said);
                got[index] = numbers;
            }
            shown(answer, &seen)
        })?;
        let [real, model] = got;
        for (real, model) in real.into_iter().zip(model) {
            let fds = [real as usize, model as usize];
            let class = self.class_of(fds[0]);
            self.slots.push(Slot { class, fds });
        }
        Ok(())
    }

    /// Of a descriptor that came with a message.
    pub fn class_of(&mut self, real: usize) -> Class {
        let (link, mut room) = (format!("/proc/self/fd/{real}\0"), [0u8; 64]);
        let args = [libc::AT_FDCWD as usize, link.as_ptr() as usize, room.as_mut_ptr() as usize, 64, 0, 0];
        let len = self.real.call(Sysno::readlinkat, args).unwrap_or(0);
        let path = String::from_utf8_lossy(&room[..len]).into_owned();
        if path.contains("eventfd") {
            return Class::Event;
        }
        if path.contains("eventpoll") {
            return Class::Set;
        }
        let mut option = |name: i32| {
            let (mut value, mut len) = (0i32, 4i32);
            let args = [
                real,
                libc::SOL_SOCKET as usize,
                name as usize,
                &raw mut value as usize,
                &raw mut len as usize,
                0,
            ];
            self.real.call(Sysno::getsockopt, args).map_or(0, |_| value)
        };
        match (option(libc::SO_DOMAIN), option(libc::SO_TYPE)) {
            (libc::AF_INET, _) => Class::Tcp,
            (_, libc::SOCK_STREAM) => Class::Stream,
            (_, libc::SOCK_SEQPACKET) => Class::Packets,
            _ => Class::Datagrams,
        }
    }

    /// Sends a descriptor.
    pub fn rights(&mut self) -> Checked {
        let (Some(slot), Some(passed)) =
            (self.pick(&[Class::Stream, Class::Packets, Class::Datagrams]), self.any())
        else {
            return Ok(());
        };
        self.sent += 1;
        if self.sent > 60
            || self.slots[passed].class == Class::Set
            || self.slots[passed].class == Class::Stream
        {
            // A socket in its own queue would live until the garbage collector finds it.
            return Ok(());
        }
        if matches!(self.slots[passed].class, Class::Packets | Class::Datagrams) {
            return Ok(());
        }
        let (fds, others) = (self.slots[slot].fds, self.slots[passed].fds);
        let bytes = [self.sent as u8; 7];
        self.both(format!("sendmsg(#{slot}, 7, with #{passed})"), |world, index| {
            let iov = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: 7 }];
            let control = [20u64, 1 | 1 << 32, others[index] as u64];
            // SAFETY: all zeroes is a valid msghdr.
            let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
            message.msg_iov = iov.as_ptr().cast_mut();
            message.msg_iovlen = 1;
            message.msg_control = control.as_ptr() as *mut _;
            message.msg_controllen = 24;
            let flags = libc::MSG_NOSIGNAL as usize;
            shown(world.call(Sysno::sendmsg, [fds[index], &raw const message as usize, flags, 0, 0, 0]), &[])
        })?;
        Ok(())
    }

    pub fn urgent(&mut self) -> Checked {
        let Some(slot) = self.pick(TCP) else { return Ok(()) };
        let fds = self.slots[slot].fds;
        if self.dice.once_in(2) {
            let len = self.dice.of(&[1, 1, 1, 3, 20]);
            self.sent += 1;
            let bytes: Vec<u8> = (0..len).map(|at| (self.sent * 17 + at) as u8).collect();
            let flags = libc::MSG_OOB as usize | libc::MSG_NOSIGNAL as usize;
            self.plain(format!("sendto(#{slot}, {len}, OOB)"), Sysno::sendto, |world| {
                [fds[world], bytes.as_ptr() as usize, len, flags, 0, 0]
            })?;
        } else {
            let flags = libc::MSG_OOB as usize | self.dice.of(&[0, 0, libc::MSG_PEEK as usize]);
            let len = self.dice.of(&[0, 1, 5]);
            self.both(format!("recvfrom(#{slot}, {len}, {flags:#x})"), |world, index| {
                let mut buffer = [0xeeu8; 8];
                let at = buffer.as_mut_ptr() as usize;
                let answer = world.call(Sysno::recvfrom, [fds[index], at, len, flags, 0, 0]);
                shown(answer, &buffer)
            })?;
        }
        Ok(())
    }

    pub fn shutdown(&mut self) -> Checked {
        let Some(slot) = self.pick(SOCKETS) else { return Ok(()) };
        if !self.dice.once_in(3) {
            return Ok(());
        }
        let fds = self.slots[slot].fds;
        let how = self.dice.of(&[0, 1, 1, 2]);
        self.plain(format!("shutdown(#{slot}, {how})"), Sysno::shutdown, |world| {
            [fds[world], how, 0, 0, 0, 0]
        })?;
        Ok(())
    }

    pub fn close(&mut self) -> Checked {
        let Some(slot) = self.any() else { return Ok(()) };
        if !self.dice.once_in(3) && !self.full() {
            return Ok(());
        }
        let fds = self.slots[slot].fds;
        self.plain(format!("close(#{slot})"), Sysno::close, |world| [fds[world], 0, 0, 0, 0, 0])?;
        self.slots.swap_remove(slot);
        if slot < self.slots.len() {
            let was = self.slots.len();
            self.log.push_back(format!("  (#{was} is #{slot} now)"));
        }
        Ok(())
    }

    pub fn dup(&mut self) -> Checked {
        let Some(slot) = self.any() else { return Ok(()) };
        if self.full() {
            return Ok(());
        }
        let slot_was = self.slots[slot];
        self.makes(slot_was.class, format!("dup(#{slot})"), |world, index| {
            world.call(Sysno::fcntl, [slot_was.fds[index], libc::F_DUPFD_CLOEXEC as usize, 3, 0, 0, 0])
        })?;
        Ok(())
    }

    pub fn event(&mut self) -> Checked {
        let Some(slot) = self.pick(&[Class::Event]) else { return Ok(()) };
        let fds = self.slots[slot].fds;
        if self.dice.once_in(2) {
            let value = self.dice.of(&[0u64, 1, 1, 2, 77, u64::MAX - 1, u64::MAX - 1, u64::MAX]);
            let len = self.dice.of(&[8, 8, 8, 8, 7, 16]);
            let bytes = [value, 0];
            self.plain(format!("write(#{slot}, {value}: {len})"), Sysno::write, |world| {
                [fds[world], bytes.as_ptr() as usize, len, 0, 0, 0]
            })?;
        } else {
            let len = self.dice.of(&[8, 8, 8, 8, 4, 16]);
            self.both(format!("read(#{slot}, {len})"), |world, index| {
                let mut value = [0xeeu8; 16];
                let answer = world.call(Sysno::read, [fds[index], value.as_mut_ptr() as usize, len, 0, 0, 0]);
                shown(answer, &value)
            })?;
        }
        Ok(())
    }
}
