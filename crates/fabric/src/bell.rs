//! Bells: how a process sleeps until a tripwire fires. On one host a bell is an eventfd,
//! non-blocking, passed to the peer when a link is made; the owner has it in its poll or epoll set.
//! Ringing is idempotent; a stray ring is a spurious wake-up.
//!
//! A process that has an eventfd can also silence it, or make it full and blocking. So processes of
//! other users get none. They ring by datagrams ([`Loud`]): each from a socket of its own, by which
//! it can only send, and which never blocks.

use crate::sys::{self, Errno};

/// Makes a bell.
pub fn create() -> Result<i32, Errno> {
    sys::eventfd()
}

/// Rings a bell, by its descriptor.
pub fn ring(fd: i32) {
    let one = 1u64.to_ne_bytes();
    // A full counter (EAGAIN) means that it rings already; any other error means that its owner is
    // gone.
    let _ = sys::write(fd, &one);
}

/// Silences a bell after a wake-up, and returns how often it was rung. Another process that has the
/// bell may have silenced it already, or made it a blocking one.
pub fn silence(fd: i32) -> u64 {
    let mut count = [0; 8];
    if sys::read_now(fd, &mut count) == Err(Errno::EOPNOTSUPP) {
        let _ = sys::read(fd, &mut count);
    }
    u64::from_ne_bytes(count)
}

/// Whether a descriptor that came from a peer may be a bell: a pipe, a socket or a file could block
/// whoever rings it, or kill it.
pub fn is_bell(fd: i32) -> bool {
    sys::is_anonymous(fd)
}

/// The bells of one process that other users ring: datagram sockets in the abstract namespace, one
/// for each number. A filter on the socket drops every datagram that does not carry the secret
/// word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loud {
    /// Their name, but for the number.
    pub name: u64,
    /// The word that rings them.
    pub word: u64,
}

/// Datagrams that are taken out of a bell at once. No more find room there, unless somebody sends
/// all the time.
const AT_ONCE: u64 = 1024;

impl Loud {
    /// Bells with a name and a word that nobody can guess.
    pub fn new() -> Option<Loud> {
        Some(Loud { name: sys::try_random()? | 1, word: sys::try_random()? })
    }

    /// Makes the bell with this number (up to 31).
    pub fn create(self, number: u8) -> Result<i32, Errno> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = sys::socket(libc::AF_UNIX, kind, 0)?;
        let (address, len) = self.address(number);
        let made = self.hear_only_the_word(fd).and_then(|()| sys::bind(fd, (&raw const address).cast(), len));
        match made {
            Ok(()) => Ok(fd),
            Err(errno) => {
                sys::close(fd);
                Err(errno)
            }
        }
    }

    /// Has a socket take in nothing but the word.
    pub fn hear_only_the_word(self, fd: i32) -> Result<(), Errno> {
        // The filter's loads are big-endian.
        let bytes = self.word.to_ne_bytes();
        let half = |at: usize| u32::from_be_bytes(core::array::from_fn(|i| bytes[at + i]));
        let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let (load, equal, give) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::BPF_RET | libc::BPF_K,
        );
        let mut filter = [
            step(load, 0, 0),
            step(equal, 3, half(0)),
            step(load, 0, 4),
            step(equal, 1, half(4)),
            step(give, 0, u32::MAX),
            step(give, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
    }

    /// Makes the socket from which this process rings the bells of others.
    pub fn speaker() -> Result<i32, Errno> {
        sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    }

    /// Rings the bell with this number. One that is full rings already.
    pub fn ring(self, speaker: i32, number: u8) {
        let mut word = self.word.to_ne_bytes();
        let (mut address, len) = self.address(number);
        let mut iov = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
        // SAFETY: all zeroes is a valid msghdr.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = len;
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        let _ = sys::sendmsg(speaker, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }

    fn address(self, number: u8) -> (libc::sockaddr_un, u32) {
        sys::numbered_address(self.name, &[b'/', b'0' + number])
    }
}

/// A word for bells that are rung by sockets connected to them ([`ring_connected`]).
pub fn far_word() -> Option<u64> {
    Some(of_far(sys::try_random()?))
}

/// Who tells a word may have connected us to something else than a bell: of what is said there it
/// chooses the half.
const fn of_far(word: u64) -> u64 {
    word & 0xffff_ffff | 0x5348_424c << 32
}

/// Rings a bell by a socket that is connected to it. False if it is no more.
pub fn ring_connected(speaker: i32, word: u64) -> bool {
    let word = of_far(word).to_ne_bytes();
    let rung = sys::send(speaker, word.as_ptr(), word.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    matches!(rung, Ok(_) | Err(Errno::EAGAIN))
}

/// Takes one of the rings out of such a bell, which is mostly all.
pub fn take_loud(fd: i32) {
    let mut word = [0; 8];
    let _ = sys::recv(fd, word.as_mut_ptr(), word.len(), libc::MSG_DONTWAIT);
}

/// Silences such a bell. Returns how often it was rung, and whether it is silent now.
pub fn silence_loud(fd: i32) -> (u64, bool) {
    let mut byte = [0; 8];
    for count in 0..AT_ONCE {
        if sys::recv(fd, byte.as_mut_ptr(), byte.len(), libc::MSG_DONTWAIT).is_err() {
            return (count, true);
        }
    }
    (AT_ONCE, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loud_bell_hears_its_word_alone_and_never_blocks_who_rings() {
        let loud = Loud::new().unwrap();
        let (bell, speaker) = (loud.create(3).unwrap(), Loud::speaker().unwrap());
        Loud { word: !loud.word, ..loud }.ring(speaker, 3);
        assert_eq!(silence_loud(bell), (0, true));
        loud.ring(speaker, 4);
        loud.ring(speaker, 3);
        assert_eq!(silence_loud(bell), (1, true));
        for _ in 0..5000 {
            loud.ring(speaker, 3);
        }
        assert!(sys::readable(bell));
        while !silence_loud(bell).1 {}
        loud.ring(speaker, 3);
        assert_eq!(silence_loud(bell), (1, true));
        sys::close(bell);
        sys::close(speaker);
    }
}
