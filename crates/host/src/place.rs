//! The abstract UNIX sockets at which Virtual Interfaces of a host wait for others. Their names are what the crate `via`, which listens there, and the agent, which connects
//! there for those who come from other hosts, agree on.

use core::fmt::{self, Write as _};

/// The most bytes of what a place is called among the places of a user.
pub const LONGEST: usize = 86;

/// What an agent says with the connection that it hands over.
pub const HANDED_OVER: &[u8; 8] = b"VIA-FAR\x01";

/// The most bytes of a name: of an address of a UNIX socket, without the zero that makes it abstract.
const NAME: usize = 107;

/// The abstract name of a place: users do not meet each other.
pub struct Name {
    bytes: [u8; NAME],
    len: usize,
}

impl Name {
    /// That of a user's place. None if that is called by more than [`LONGEST`] bytes.
    pub fn of(uid: u32, place: &[u8]) -> Option<Name> {
        let mut name = Name { bytes: [0; NAME], len: 0 };
        write!(name, "shunt-via-{uid}-").ok()?;
        (place.len() <= LONGEST && name.push(place)).then_some(name)
    }

    fn push(&mut self, more: &[u8]) -> bool {
        let Some(to) = self.bytes.get_mut(self.len..self.len + more.len()) else { return false };
        to.copy_from_slice(more);
        self.len += more.len();
        true
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.push(text.as_bytes()) { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_place_of_the_greatest_user_has_a_name() {
        let name = Name::of(u32::MAX, &[b'p'; LONGEST]).unwrap();
        assert!(name.as_bytes().starts_with(b"shunt-via-4294967295-ppp"));
        assert_eq!(name.as_bytes().len(), NAME);
        assert_eq!(Name::of(7, b"d\x02ab").unwrap().as_bytes(), b"shunt-via-7-d\x02ab");
        assert!(Name::of(0, &[b'p'; LONGEST + 1]).is_none());
    }
}
