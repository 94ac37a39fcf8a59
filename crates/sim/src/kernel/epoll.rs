//! epoll(7) (`eventpoll.c`): sets, their members, and what is pending in them.

use syscalls::Errno;

use super::objects::{Item, Kind, Set};
use super::state::{Kernel, Outcome, PRIVATE, Tid, ready};
use super::user;

/// Sets within sets (EP_MAX_NESTS).
const NESTS: usize = 4;
/// What may be asked for together with EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: u32 = ready::IN
    | ready::OUT
    | ready::ERR
    | ready::HUP
    | (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;

impl Kernel {
    pub(super) fn epoll_create(&mut self, tid: Tid, flags: i32) -> Result<usize, Errno> {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        self.make(tid, libc::O_RDWR, flags != 0, |_| Kind::Set(Set::default()))
    }

    fn set(&mut self, file: u64) -> Option<&mut Set> {
        match &mut self.files[file].kind {
            Kind::Set(set) => Some(set),
            _ => None,
        }
    }

    pub(super) fn epoll_ctl(
        &mut self,
        tid: Tid,
        set: usize,
        op: i32,
        fd: usize,
        at: usize,
    ) -> Result<usize, Errno> {
        let event = match op {
            libc::EPOLL_CTL_DEL => libc::epoll_event { events: 0, u64: 0 },
            _ => user::get::<libc::epoll_event>(at)?,
        };
        let (events, data) = (event.events, event.u64);
        let file = self.file(tid, set)?;
        let target = self.file(tid, fd)?;
        if !self.can_poll(target) {
            return Err(Errno::EPERM);
        }
        let exclusive = events & libc::EPOLLEXCLUSIVE as u32 != 0;
        let nested = self.set(target).is_some();
        if file == target || self.set(file).is_none() {
            return Err(Errno::EINVAL);
        }
        if exclusive {
            let refused = nested || events & !WITH_EXCLUSIVE != 0;
            if op == libc::EPOLL_CTL_MOD || op == libc::EPOLL_CTL_ADD && refused {
                return Err(Errno::EINVAL);
            }
        }
        if op == libc::EPOLL_CTL_ADD && nested && self.would_loop(file, target) {
            return Err(Errno::ELOOP);
        }
        let key = (target, fd as i32);
        let Some(entry) = self.set(file) else { return Err(Errno::EINVAL) };
        let known = entry.items.get(&key).copied();
        let item = Item { events: events | ready::ERR | ready::HUP, data };
        match (op, known) {
            (libc::EPOLL_CTL_ADD, None) => {
                entry.items.insert(key, item);
                // Those that do not share are told in turn, after all others
                // (add_wait_queue_exclusive).
                let members = &mut self.files[target].members;
                let at = if exclusive { members.len() } else { 0 };
                members.insert(at, (file, fd as i32));
                self.look_at(file, key);
                Ok(0)
            }
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(Errno::EEXIST),
            (libc::EPOLL_CTL_MOD, Some(known)) => {
                if known.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                    return Err(Errno::EINVAL);
                }
                entry.items.insert(key, item);
                self.look_at(file, key);
                Ok(0)
            }
            (libc::EPOLL_CTL_DEL, Some(_)) => {
                self.remove_member(file, key);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => Err(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    /// A member that is ready when it is added or changed is pending (`ep_insert`, `ep_modify`).
    fn look_at(&mut self, set: u64, key: (u64, i32)) {
        let events = self.set(set).map_or(0, |entry| entry.items[&key].events);
        if self.readiness(key.0, events).unwrap_or(0) & events == 0 {
            return;
        }
        let Some(entry) = self.set(set) else { return };
        if !entry.ready.contains(&key) {
            entry.ready.push_back(key);
            entry.sleepers.pop_first();
            self.wake(Some(set), ready::IN);
        }
    }

    fn remove_member(&mut self, set: u64, key: (u64, i32)) {
        if let Some(entry) = self.set(set) {
            entry.items.remove(&key);
            entry.ready.retain(|known| *known != key);
        }
        if let Some(target) = self.files.find_mut(key.0) {
            target.members.retain(|&(of, fd)| (of, fd) != (set, key.1));
        }
    }

    /// Whether `set` can be reached from `target`, or sets would lie too deep.
    fn would_loop(&self, set: u64, target: u64) -> bool {
        self.reaches(target, set) || self.height(target) + self.depth(set) > NESTS + 1
    }

    fn inner(&self, set: u64) -> Vec<u64> {
        match &self.files[set].kind {
            Kind::Set(entry) => entry.items.keys().map(|&(file, _)| file).collect(),
            _ => Vec::new(),
        }
    }

    fn reaches(&self, from: u64, to: u64) -> bool {
        from == to || self.inner(from).into_iter().any(|inner| self.reaches(inner, to))
    }

    /// How many sets lie within each other, beginning with this one.
    fn height(&self, set: u64) -> usize {
        match self.files[set].kind {
            Kind::Set(_) => {
                1 + self.inner(set).into_iter().map(|inner| self.height(inner)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// How many sets lie around this one, itself counted.
    fn depth(&self, set: u64) -> usize {
        1 + self.files[set].members.iter().map(|&(outer, _)| self.depth(outer)).max().unwrap_or(0)
    }

    /// `epoll_wait` and its like, with a timeout in nanoseconds.
    pub(super) fn epoll_wait(
        &mut self,
        tid: Tid,
        fd: usize,
        at: usize,
        most: i32,
        timeout: Option<u64>,
    ) -> Outcome {
        if most <= 0 || most as usize > i32::MAX as usize / size_of::<libc::epoll_event>() {
            return Outcome::Done(Err(Errno::EINVAL));
        }
        let file = match self.file(tid, fd) {
            Ok(file) => file,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        match self.set(file) {
            Some(entry) => entry.sleepers.remove(&tid),
            None => return Outcome::Done(Err(Errno::EINVAL)),
        };
        match self.send_events(file, at, most as usize) {
            Ok(0) if self.wait(tid, timeout) => {
                if let Some(entry) = self.set(file) {
                    entry.sleepers.insert(tid);
                }
                Outcome::Sleep
            }
            result => Outcome::Done(result),
        }
    }

    /// `ep_send_events`: looks at each member of the list once more, in turn.
    fn send_events(&mut self, set: u64, at: usize, most: usize) -> Result<usize, Errno> {
        let Some(entry) = self.set(set) else { return Err(Errno::EINVAL) };
        let mut list = core::mem::take(&mut entry.ready);
        let mut count = 0;
        while count < most
            && let Some(key) = list.pop_front()
        {
            let Some(item) = self.set(set).and_then(|entry| entry.items.get(&key).copied()) else { continue };
            let found = self.readiness(key.0, item.events).unwrap_or(0) & item.events;
            if found == 0 {
                continue;
            }
            let event = libc::epoll_event { events: found, u64: item.data };
            user::put(at + count * size_of::<libc::epoll_event>(), event)?;
            count += 1;
            let Some(entry) = self.set(set) else { continue };
            if item.events & libc::EPOLLONESHOT as u32 != 0 {
                entry.items.insert(key, Item { events: item.events & PRIVATE, ..item });
            } else if item.events & libc::EPOLLET as u32 == 0 {
                entry.ready.push_back(key);
            }
        }
        // What was not looked at comes first the next time.
        if let Some(entry) = self.set(set) {
            for key in list.into_iter().rev() {
                entry.ready.push_front(key);
            }
        }
        Ok(count)
    }

    /// A set, or a member of sets, is not there any more (`ep_free`, `eventpoll_release_file`).
    pub(super) fn leave_sets(&mut self, file: u64) {
        for (set, fd) in core::mem::take(&mut self.files[file].members) {
            self.remove_member(set, (file, fd));
        }
        if let Some(entry) = self.set(file) {
            let keys: Vec<_> = entry.items.keys().copied().collect();
            for key in keys {
                self.remove_member(file, key);
            }
        }
    }

    /// A thread sleeps on no set any more.
    pub(super) fn leave_sleepers(&mut self, tid: Tid, files: &[(i32, u64)]) {
        for &(_, file) in files {
            if let Some(entry) = self.set(file) {
                entry.sleepers.remove(&tid);
            }
        }
    }
}
