//! Which copy of the consumer gets the next buffer, and whether any may have one yet: credits and
//! policies. Pure, and without time: the runtime and the simulation ask the same code, so the
//! simulation decides as the runtime does.
//!
//! A *credit* is the right to have one more buffer unacknowledged at one copy of the consumer. A
//! consumer acknowledges a buffer when it starts on it, not when it is done ("Impact of High
//! Performance Sockets on Data Intensive Applications", section 4.2), so unacknowledged buffers are
//! those that wait.

use serde::{Deserialize, Serialize};

/// How a stream chooses among the copies of its consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// One after the other, whoever is slow.
    RoundRobin,
    /// One after the other, each as often as its weight says, evenly spread. One weight for each
    /// copy of the consumer.
    Weighted(Vec<u32>),
    /// The copy with the fewest unacknowledged buffers; among equals the one that got a buffer
    /// longest ago.
    DemandDriven,
    /// By the buffer's key: the same key goes to the same copy, in every run and on every host.
    Keyed,
    /// The choice of a function of the producer, which sees the buffer's metadata; see
    /// [`crate::Chooser`].
    User,
}

/// Metadata of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The number that the producer gave it, for [`Policy::Keyed`]; 0 if it gave none.
    pub key: u64,
    /// Bytes.
    pub len: usize,
    /// The note that the producer wrote beside it.
    pub note: &'a [u8],
}

/// The decision about the next buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Send it to this copy.
    Send(usize),
    /// Wait until this copy has acknowledged a buffer.
    WaitFor(usize),
    /// Wait until any copy has acknowledged one.
    WaitForAny,
}

/// The state of one copy of the consumer, as one producer copy knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Buffers sent.
    pub sent: u64,
    /// The number of them that it has started on.
    pub acknowledged: u64,
    /// The most that were unacknowledged at once.
    pub most: u64,
    weight: i64,
    /// Smooth weighted round-robin: grows by its weight at each turn, falls by all weights when
    /// chosen.
    turn: i64,
    /// The count of all buffers when it was last chosen.
    last: u64,
}

impl Account {
    /// Buffers sent and not started on.
    pub fn unacknowledged(&self) -> u64 {
        self.sent - self.acknowledged
    }
}

/// One producer copy's side of one stream.
#[derive(Debug, Clone)]
pub struct Flow {
    policy: Policy,
    credits: u64,
    accounts: Vec<Account>,
    next: usize,
    total: u64,
    all_weights: i64,
}

impl Flow {
    /// For `consumers` copies (at least one), each of which may have `credits` unacknowledged
    /// buffers (at least one) of this producer. `first` is where round-robin starts: different for
    /// each copy of the producer, lest all begin with the same.
    pub fn new(policy: Policy, credits: u64, consumers: usize, first: usize) -> Flow {
        assert!(consumers > 0 && credits > 0);
        let weight = |index: usize| match &policy {
            Policy::Weighted(weights) => i64::from(weights.get(index).copied().unwrap_or(1)),
            _ => 1,
        };
        let accounts: Vec<Account> =
            (0..consumers).map(|index| Account { weight: weight(index), ..Account::default() }).collect();
        let all_weights = accounts.iter().map(|account| account.weight).sum();
        let mut flow = Flow { policy, credits, accounts, next: first % consumers, total: 0, all_weights };
        // The order in which copies that were never chosen are chosen.
        for offset in 0..consumers {
            flow.accounts[(first + offset) % consumers].last = offset as u64;
        }
        flow.total = consumers as u64;
        flow
    }

    /// Where the next buffer goes. Asking changes nothing, so it can be asked again after a wait.
    /// `wanted` is the choice of the producer's own function, and counts for [`Policy::User`] only.
    pub fn choose(&self, meta: &Meta, wanted: Option<usize>) -> Choice {
        let fixed = |index: usize| {
            if self.has_credit(index) { Choice::Send(index) } else { Choice::WaitFor(index) }
        };
        let count = self.accounts.len();
        match &self.policy {
            Policy::RoundRobin => fixed(self.next),
            Policy::Weighted(_) => fixed(self.heaviest()),
            Policy::Keyed => fixed((mix(meta.key) % count as u64) as usize),
            Policy::User => fixed(wanted.unwrap_or(0).min(count - 1)),
            Policy::DemandDriven => {
                let best = (0..count)
                    .min_by_key(|&index| (self.accounts[index].unacknowledged(), self.accounts[index].last))
                    .expect("there is at least one consumer");
                // If any copy has a credit, the one with the fewest buffers has.
                if self.has_credit(best) { Choice::Send(best) } else { Choice::WaitForAny }
            }
        }
    }

    /// A buffer was sent to this copy, as [`Flow::choose`] said.
    pub fn sent(&mut self, to: usize) {
        if let Policy::Weighted(_) = self.policy {
            for account in &mut self.accounts {
                account.turn += account.weight;
            }
            self.accounts[to].turn -= self.all_weights;
        }
        self.next = (to + 1) % self.accounts.len();
        self.total += 1;
        let account = &mut self.accounts[to];
        account.sent += 1;
        account.last = self.total;
        account.most = account.most.max(account.unacknowledged());
    }

    /// The copy has started on so many buffers in all. Impossible counts (fewer than before, more
    /// than were sent) are ignored.
    pub fn acknowledged(&mut self, by: usize, in_all: u64) {
        let account = &mut self.accounts[by];
        if (account.acknowledged..=account.sent).contains(&in_all) {
            account.acknowledged = in_all;
        }
    }

    /// Whether the copy may have one more.
    pub fn has_credit(&self, index: usize) -> bool {
        self.accounts[index].unacknowledged() < self.credits
    }

    /// The state of each copy of the consumer.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The copy whose turn it is by smooth weighted round-robin.
    fn heaviest(&self) -> usize {
        let turn = |index: usize| self.accounts[index].turn + self.accounts[index].weight;
        (0..self.accounts.len())
            .max_by_key(|&index| (turn(index), std::cmp::Reverse(self.accounts[index].last)))
            .expect("there is at least one consumer")
    }
}

/// Spreads keys that are consecutive numbers; splitmix64's last step. Users can see it, as it
/// decides which copy gets which key.
fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: Meta = Meta { key: 0, len: 0, note: &[] };

    fn send_all(flow: &mut Flow, count: usize) -> Vec<usize> {
        (0..count)
            .map_while(|_| match flow.choose(&NOTHING, None) {
                Choice::Send(to) => {
                    flow.sent(to);
                    Some(to)
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn round_robin_waits_for_the_one_whose_turn_it_is() {
        let mut flow = Flow::new(Policy::RoundRobin, 2, 3, 1);
        assert_eq!(send_all(&mut flow, 9), [1, 2, 0, 1, 2, 0]);
        flow.acknowledged(0, 2);
        assert_eq!(flow.choose(&NOTHING, None), Choice::WaitFor(1));
        flow.acknowledged(1, 1);
        assert_eq!(flow.choose(&NOTHING, None), Choice::Send(1));
    }

    #[test]
    fn demand_driven_gives_to_whoever_has_the_fewest() {
        let mut flow = Flow::new(Policy::DemandDriven, 2, 3, 0);
        assert_eq!(send_all(&mut flow, 9), [0, 1, 2, 0, 1, 2]);
        assert_eq!(flow.choose(&NOTHING, None), Choice::WaitForAny);
        flow.acknowledged(2, 2);
        flow.acknowledged(1, 1);
        assert_eq!(send_all(&mut flow, 9), [2, 1, 2]);
    }

    #[test]
    fn weights_are_kept_and_spread() {
        let mut flow = Flow::new(Policy::Weighted(vec![3, 1]), 100, 2, 0);
        assert_eq!(send_all(&mut flow, 8), [0, 1, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn acknowledgements_that_cannot_be_are_not_believed() {
        let mut flow = Flow::new(Policy::RoundRobin, 4, 1, 0);
        send_all(&mut flow, 3);
        for (said, held) in [(2, 2), (1, 2), (4, 2), (u64::MAX, 2), (3, 3)] {
            flow.acknowledged(0, said);
            assert_eq!(flow.accounts()[0].acknowledged, held, "after {said}");
        }
    }

    fn policy() -> impl Strategy<Value = Policy> {
        prop_oneof![
            Just(Policy::RoundRobin),
            Just(Policy::DemandDriven),
            Just(Policy::Keyed),
            Just(Policy::User),
            proptest::collection::vec(1u32..9, 8).prop_map(Policy::Weighted),
        ]
    }

    proptest! {
        /// In all cases no copy gets more than its credits, a wait ends when that copy
        /// acknowledges, and no copy that is not waited for matters.
        #[test]
        fn credits_bound_what_waits(
            policy in policy(),
            credits in 1u64..9,
            consumers in 1usize..8,
            steps in proptest::collection::vec((any::<u64>(), 0usize..8, any::<bool>()), 0..400),
        ) {
            let mut flow = Flow::new(policy.clone(), credits, consumers, 3);
            for (key, who, acknowledge) in steps {
                let who = who % consumers;
                let meta = Meta { key, ..NOTHING };
                if acknowledge {
                    let account = flow.accounts()[who];
                    if account.unacknowledged() > 0 {
                        flow.acknowledged(who, account.acknowledged + 1);
                    }
                    continue;
                }
                match flow.choose(&meta, Some(who)) {
                    Choice::Send(to) => {
                        prop_assert!(flow.accounts()[to].unacknowledged() < credits);
                        if policy == Policy::DemandDriven {
                            let least = flow.accounts().iter().map(Account::unacknowledged).min();
                            prop_assert_eq!(Some(flow.accounts()[to].unacknowledged()), least);
                        }
                        flow.sent(to);
                    }
                    Choice::WaitFor(whom) => {
                        prop_assert_eq!(flow.accounts()[whom].unacknowledged(), credits);
                        let mut later = flow.clone();
                        later.acknowledged(whom, flow.accounts()[whom].acknowledged + 1);
                        prop_assert_eq!(later.choose(&meta, Some(who)), Choice::Send(whom));
                    }
                    Choice::WaitForAny => {
                        prop_assert!(flow.accounts().iter().all(|account| account.unacknowledged() == credits));
                    }
                }
            }
        }

        /// Over any number of whole turns each copy gets exactly its weight.
        #[test]
        fn weighted_turns_are_exact(weights in proptest::collection::vec(1u32..9, 1..8), turns in 1u32..9) {
            let all: u32 = weights.iter().sum();
            let mut flow = Flow::new(Policy::Weighted(weights.clone()), u64::MAX, weights.len(), 0);
            send_all(&mut flow, (all * turns) as usize);
            for (account, weight) in flow.accounts().iter().zip(weights) {
                prop_assert_eq!(account.sent, u64::from(weight * turns));
            }
        }
    }
}
