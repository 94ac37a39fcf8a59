//! The proof that two processes have the two ends of one connection, where no kernel shows both: by
//! where the stream is cut into segments.
//!
//! Nobody but the two ends can change that, and no program notices. Each end draws a *seed*, and
//! says by a *commitment* which, to the other alone, before it is used. Then it sends short writes
//! in two segments (the first byte, the rest) or in one, and notes how many segments with data have
//! come when how many bytes had. At last both show their seeds, and each looks whether what it has
//! received fell as the other's coins.
//!
//! **The coin** of a write is what the seed and a *salt* of the other's give for the byte with
//! which it begins, and that turned over if the other's last short write has come in two. So to
//! toss it one must have received that write, and each write of the other's is good for one coin: a
//! proof takes turns, as requests and answers do.
//!
//! **Who is kept out.** One who has not the other end cannot know how the verifier's last write was
//! cut, as the verifier's seed is shown last; so each of its coins agrees with what came by chance,
//! one in two, also if it can make the real sender write what, and as much as, it likes. A write
//! that agrees counts 1, one that does not [`MISS`] less; to reach [`ENOUGH`] by chance from a
//! given write on takes 2^45 tries (the walk's root is 1.93), 2^37 from any of [`NOTES`]. A
//! commitment names both ends' sockets ([`Name`]), so it is of no use to one who stands between two
//! others.
//!
//! **Who can count packets** and has the real sender write what it likes is not kept out:
//! /proc/net/softnet_stat counts those of all namespaces, so on a quiet host it shows how each
//! write was cut. docs/security.md says so.
//!
//! **Who is left out.** Connections with too few turns, and those where several writes come between
//! two calls of the reader, stay on tcp.

use blake2::{Blake2s256, Digest};

use crate::folder::Name;

/// So many short writes an end cuts as its coins fall, before it shows its seed.
pub(super) const WINDOW: u32 = 72;

/// Bytes of a short write: less than any segment holds.
pub(super) const SHORT: core::ops::RangeInclusive<usize> = 2..=500;

/// What makes a proof, and what a write that does not agree costs: some do not with honest ends,
/// as several were read at once.
const ENOUGH: i32 = 48;
const MISS: i32 = 4;

/// What an end's coins are tossed by.
#[derive(Clone, Copy, Default)]
pub(super) struct Seed(pub [u64; 2]);

pub(super) type Commitment = [u64; 4];

/// Of the seed of the end named `from`, told to the one named `to`.
pub(super) fn commitment(seed: Seed, from: Name, to: Name) -> Commitment {
    hash(b"shunt commits", &[seed.0[0], seed.0[1], from.token, from.file, to.token, to.file])
}

/// What is tossed for the write that begins at byte `at`.
fn coin(seed: Seed, salt: u64, at: u64) -> bool {
    hash(b"shunt cuts", &[seed.0[0], seed.0[1], salt, at])[0] & 1 == 1
}

/// What both ends know after a proof, and nobody else: the one that has called connect() shows it
/// when it opens a link.
pub(super) fn key(client: Seed, server: Seed) -> u64 {
    hash(b"shunt links", &[client.0[0], client.0[1], server.0[0], server.0[1]])[0]
}

/// What stands for a process among links: both its name and the file that it was reached by.
pub(super) fn process(name: Name) -> u64 {
    hash(b"shunt process", &[name.token, name.file])[0] | 1
}

fn hash(what: &[u8], words: &[u64]) -> Commitment {
    let mut hasher = Blake2s256::new_with_prefix(what);
    words.iter().for_each(|word| hasher.update(word.to_le_bytes()));
    let bytes = hasher.finalize();
    core::array::from_fn(|word| u64::from_le_bytes(core::array::from_fn(|byte| bytes[word * 8 + byte])))
}

const NOTES: usize = 4 * WINDOW as usize;

/// What an end has noted of what came: after which byte so many segments had; and whether its own
/// last write before that went in two, if it was tossed for and nothing has come since.
pub(super) struct Notes {
    count: usize,
    list: [(u64, u32, Option<bool>); NOTES],
    last: Option<(u64, u32)>,
    /// Whether the other's last write has come in two, if it was a short one and we have not tossed
    /// for it yet.
    heard: Option<bool>,
    /// Whether our own last one went so, if it was tossed for and nothing has come since.
    said: Option<bool>,
    /// The last note is of one byte, and we have not written since: it may be the first segment of
    /// a write whose rest has not come yet.
    half: bool,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { count: 0, list: [(0, 0, None); NOTES], last: None, heard: None, said: None, half: false }
    }
}

impl Notes {
    /// Nothing is noted.
    pub(super) fn begin(&mut self) {
        (self.count, self.last, self.heard, self.said, self.half) = (0, None, None, None, false);
    }

    /// So many bytes have come by now, in so many segments.
    pub(super) fn come(&mut self, come: u64, come_in: u32) {
        let Some((begin, came_in)) = self.last else {
            self.last = Some((come, come_in));
            return self.keep(come, come_in);
        };
        // Of a number that stands for another connection by now.
        if come <= begin {
            return;
        }
        let (mut begin, mut came_in) = (begin, came_in);
        if self.half && self.count > 1 {
            self.count -= 1;
            self.said = self.list[self.count].2;
            (begin, came_in, _) = self.list[self.count - 1];
        }
        self.half = come - begin == 1;
        self.last = Some((come, come_in));
        self.heard = is_short(come - begin).then_some(in_two(came_in, come_in));
        self.keep(come, come_in);
    }

    fn keep(&mut self, come: u64, come_in: u32) {
        let said = self.said.take();
        if let Some(place) = self.list.get_mut(self.count) {
            *place = (come, come_in, said);
            self.count += 1;
        }
    }

    /// Whether a short write that begins at byte `at` goes in two. `None`: it is not tossed for.
    pub(super) fn toss(&mut self, seed: Seed, salt: u64, at: u64) -> Option<bool> {
        self.heard.take().map(|heard| coin(seed, salt, at) ^ heard)
    }

    /// A write of ours has gone as it was tossed for; or any other one has.
    pub(super) fn went(&mut self, two: Option<bool>) {
        self.half = false;
        self.said = two;
    }

    /// Whether what came fell as the coins of this seed.
    pub(super) fn agree(&self, seed: Seed, salt: u64) -> bool {
        let mut sum = 0;
        for two in self.list[..self.count].windows(2) {
            let [(begin, came_in, _), (end, come_in, said)] = [two[0], two[1]];
            let Some(said) = said.filter(|_| is_short(end - begin)) else { continue };
            let two = coin(seed, salt, begin) ^ said;
            let agrees = in_two(came_in, come_in) == two;
            // From whichever write on: the other end began when our letter had come.
            sum = if agrees { sum + 1 } else { 0.max(sum - MISS) };
            if sum >= ENOUGH {
                return true;
            }
        }
        false
    }
}

/// Whether a write that came while the count of segments went from one number to another came in
/// two. If the reader takes its time, the kernel sends the second again (a tail loss probe), which
/// is a third: of two in flight it does so after 2 ms or more, of one hardly ever.
fn in_two(from: u32, to: u32) -> bool {
    to.wrapping_sub(from) > 1
}

fn is_short(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| SHORT.contains(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name { token: number, file: number + 1 }
    }

    /// One end: its notes, its seed, the salts, and what it has sent.
    struct End {
        notes: Notes,
        seed: Seed,
        salt: u64,
        sent: u64,
        sent_in: u32,
        cuts: bool,
    }

    impl End {
        fn new(seed: u64, salt: u64) -> End {
            End { notes: Notes::default(), seed: Seed([seed, !seed]), salt, sent: 0, sent_in: 0, cuts: true }
        }

        fn write(&mut self, len: u64) {
            let short = is_short(len) && self.cuts;
            let two = short.then(|| self.notes.toss(self.seed, self.salt, self.sent)).flatten();
            self.sent += len;
            self.sent_in += 1 + u32::from(two == Some(true)) + (len / 1000) as u32;
            self.notes.went(two);
        }

        fn hear(&mut self, other: &End) {
            self.notes.come(other.sent, other.sent_in);
        }
    }

    /// Requests and answers of these lengths; each end notes what has come before it writes.
    fn turns(client: &mut End, server: &mut End, lengths: impl Iterator<Item = (u64, u64)>) {
        for (request, answer) in lengths {
            client.hear(server);
            client.write(request);
            server.hear(client);
            server.write(answer);
        }
        client.hear(server);
    }

    fn lengths(seed: u64, turns: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..turns).map(move |i| (2 + (i * 37 + seed * 11) % 400, 5 + (i * 7 + seed) % 90))
    }

    #[test]
    fn two_ends_believe_each_other() {
        for number in 0..100 {
            let (mut client, mut server) =
                (End::new(number, number * 3), End::new(number + 1000, number * 5));
            turns(&mut client, &mut server, lengths(number, WINDOW.into()));
            assert!(client.notes.agree(server.seed, server.salt), "{number}");
            assert!(server.notes.agree(client.seed, client.salt), "{number}");
        }
    }

    #[test]
    fn another_seed_or_salt_is_not_believed() {
        for number in 0..2000 {
            let (mut client, mut server) =
                (End::new(number, number * 3), End::new(number + 1000, number * 5));
            turns(&mut client, &mut server, lengths(number, WINDOW.into()));
            assert!(!client.notes.agree(Seed([number, 6]), server.salt));
            assert!(!client.notes.agree(server.seed, server.salt + 1));
        }
    }

    /// Its author says what the plain server answers, so that by its own seed each answer would go
    /// in one segment; but it does not know how the client's last request was cut.
    #[test]
    fn who_only_says_what_is_written_is_not_believed() {
        for number in 0..500 {
            let (mut client, mut plain) = (End::new(number, 3), End::new(0, 0));
            plain.cuts = false;
            let (seed, salt) = (Seed([number, 77]), 5);
            for turn in 0..4 * u64::from(WINDOW) {
                client.hear(&plain);
                client.write(2 + turn % 9);
                plain.hear(&client);
                let steered = (2..500).find(|len| !coin(seed, salt, plain.sent + len)).unwrap();
                plain.write(steered);
            }
            client.hear(&plain);
            assert!(!client.notes.agree(seed, salt));
        }
    }

    #[test]
    fn an_end_that_does_not_cut_is_not_believed() {
        for number in 0..500 {
            let (mut client, mut plain) = (End::new(number, 3), End::new(0, 0));
            plain.cuts = false;
            turns(&mut client, &mut plain, lengths(number, 4 * u64::from(WINDOW)));
            assert!(!client.notes.agree(Seed([number, 9]), 4));
        }
    }

    #[test]
    fn a_first_segment_that_is_read_by_itself_is_a_part_of_its_write() {
        let (mut client, mut server) = (End::new(1, 2), End::new(3, 4));
        for (request, answer) in lengths(7, WINDOW.into()) {
            for (asks, len) in [(true, request), (false, answer)] {
                let (writer, reader) =
                    if asks { (&mut client, &mut server) } else { (&mut server, &mut client) };
                let (before, before_in) = (writer.sent, writer.sent_in);
                writer.write(len);
                if writer.sent_in - before_in == 2 {
                    reader.notes.come(before + 1, before_in + 1);
                }
                reader.notes.come(writer.sent, writer.sent_in);
            }
        }
        assert!(client.notes.agree(server.seed, server.salt));
        assert!(server.notes.agree(client.seed, client.salt));
    }

    #[test]
    fn a_segment_that_comes_again_changes_nothing() {
        let (mut client, mut server) = (End::new(1, 2), End::new(3, 4));
        let (mut writes, mut again) = (0, [0, 0]);
        for (request, answer) in lengths(7, WINDOW.into()) {
            for (asks, len) in [(true, request), (false, answer)] {
                let (writer, reader) =
                    if asks { (&mut client, &mut server) } else { (&mut server, &mut client) };
                let before = writer.sent_in;
                writer.write(len);
                writes += 1;
                again[usize::from(asks)] += u32::from(writer.sent_in - before == 2 && writes % 3 == 0);
                reader.notes.come(writer.sent, writer.sent_in + again[usize::from(asks)]);
            }
        }
        assert!(again.iter().all(|&times| times > 8));
        assert!(client.notes.agree(server.seed, server.salt));
        assert!(server.notes.agree(client.seed, client.salt));
    }

    #[test]
    fn long_writes_and_late_beginnings_are_borne() {
        let (mut client, mut server) = (End::new(1, 2), End::new(3, 4));
        server.cuts = false;
        turns(&mut client, &mut server, lengths(9, 30));
        server.cuts = true;
        let mixed = lengths(5, 100).enumerate().map(|(i, (a, b))| (a, if i % 9 == 4 { 4000 } else { b }));
        turns(&mut client, &mut server, mixed);
        assert!(client.notes.agree(server.seed, server.salt));
        assert!(server.notes.agree(client.seed, client.salt));
    }

    #[test]
    fn several_writes_in_a_turn_are_one_coin_at_most() {
        let (mut client, mut server) = (End::new(1, 2), End::new(3, 4));
        for _ in 0..200 {
            client.hear(&server);
            client.write(20);
            for _ in 0..2 {
                server.hear(&client);
                server.write(30);
                client.hear(&server);
            }
        }
        let coins = client.notes.list[..client.notes.count].iter().filter(|(_, _, said)| said.is_some());
        assert!(coins.count() <= 200);
    }

    #[test]
    fn few_writes_are_not_enough() {
        let (mut client, mut server) = (End::new(1, 2), End::new(3, 4));
        turns(&mut client, &mut server, lengths(1, 40));
        assert!(!client.notes.agree(server.seed, server.salt));
    }

    #[test]
    fn counts_that_go_back_are_not_noted() {
        let mut notes = Notes::default();
        for (come, come_in) in [(10, 1), (30, 2), (20, 9), (30, 9), (40, 3)] {
            notes.come(come, come_in);
        }
        let kept: Vec<u64> = notes.list[..notes.count].iter().map(|note| note.0).collect();
        assert_eq!(kept, [10, 30, 40]);
    }

    #[test]
    fn a_commitment_is_one_ends_to_one_other() {
        let ours = commitment(Seed([1, 2]), name(3), name(5));
        assert_eq!(ours, commitment(Seed([1, 2]), name(3), name(5)));
        for other in [
            commitment(Seed([2, 1]), name(3), name(5)),
            commitment(Seed([1, 2]), name(5), name(3)),
            commitment(Seed([1, 2]), name(3), Name { token: 5, file: 7 }),
        ] {
            assert_ne!(ours, other);
        }
        assert_ne!(key(Seed([1, 2]), Seed([3, 4])), key(Seed([3, 4]), Seed([1, 2])));
    }
}
