//! Properties of any simulated group: the same input gives the same trace, nothing is lost or done
//! twice, credits are kept, and the whole takes no less than its busiest part and no more than all
//! of its parts one after the other.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};

use filters::flow::Policy;
use filters::layout::{CopyId, Layout, Place, Placement, Plan, StreamOptions};
use filters::sim::{Cost, Outcome, Pace, Point, Profile, Setup, Step, Unit, What, run, trace};
use proptest::prelude::*;

/// Filters, their copies, and the streams between them as places of filters. Each filter's copies
/// begin one host further on.
fn plan(copies: &[usize], streams: &[(usize, usize)], hosts: usize, credits: usize, policy: Policy) -> Plan {
    let mut layout = Layout::default();
    let mut placement = Placement::default();
    let hosts: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
    for (place, &copies) in copies.iter().enumerate() {
        let name = format!("f{place}");
        layout.filter(&name, Vec::new()).expect("it is good");
        let mut own = hosts.clone();
        own.rotate_left(place % hosts.len());
        placement.0.insert(name, Place { copies, hosts: own, processes: false });
    }
    for (from, to) in streams {
        let options = StreamOptions { policy: policy.clone(), credits, ..StreamOptions::default() };
        layout.stream(&format!("f{from}"), &format!("f{to}"), options).expect("it is good");
    }
    Plan::new(&layout, &placement, &hosts).expect("it is good")
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::RoundRobin), Just(Policy::DemandDriven), Just(Policy::Keyed), Just(Policy::User)]
}

fn transport() -> impl Strategy<Value = Profile> {
    let point = (0u64..5000, 0u64..50_000, 0u64..50_000);
    let point = point.prop_map(|(bytes, one_way, gap)| Point { bytes, one_way, gap });
    prop_oneof![
        (0u64..100_000, 0u64..100_000, 1u64 << 20..1 << 36)
            .prop_map(|(latency, overhead, rate)| Profile::linear("line", latency, overhead, rate)),
        proptest::collection::vec(point, 1..6).prop_map(|points| Profile::measured("points", points)),
    ]
}

/// A chain, a fork that joins again, or a shortcut past a filter.
fn shape() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop_oneof![
        Just(vec![(0, 1), (1, 2), (2, 3)]),
        Just(vec![(0, 1), (0, 2), (1, 3), (2, 3)]),
        Just(vec![(0, 1), (1, 2), (0, 2), (2, 3)]),
    ]
}

prop_compose! {
    fn setup()(
        copies in proptest::collection::vec(1usize..5, 4),
        streams in shape(),
        hosts in 1usize..12,
        credits in 1usize..5,
        policy in policy(),
        transport in transport(),
        costs in proptest::collection::vec((0u64..40, 0u64..9000), 4),
        slow in 1000u64..9000,
        units in proptest::collection::vec((proptest::collection::vec(0u64..5000, 0..30), 0usize..4), 0..5),
        one_by_one in any::<bool>(),
    ) -> Setup {
        Setup {
            plan: plan(&copies, &streams, hosts, credits, policy),
            transport,
            costs: costs.into_iter().map(|(per_byte, fixed)| Cost { per_byte, fixed }).collect(),
            slowness: BTreeMap::from([("h0".to_string(), slow)]),
            units: units.into_iter().map(|(blocks, first)| Unit { blocks, first }).collect(),
            pace: if one_by_one { Pace::OneByOne } else { Pace::BackToBack },
        }
    }
}

/// The number of ways from the filter that makes the blocks to this one: each block arrives so
/// often.
fn ways(setup: &Setup, filter: usize) -> usize {
    let layout = &setup.plan.layout;
    if filter == 0 { 1 } else { layout.inputs(filter).map(|s| ways(setup, layout.streams[s].from)).sum() }
}

fn conserved(setup: &Setup, outcome: &Outcome, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut started: BTreeMap<(usize, usize, u64), usize> = BTreeMap::new();
    let (mut sent, mut arrived) = (0, 0);
    let mut ended = BTreeSet::new();
    for step in steps {
        match step.what {
            What::Started(block) => {
                *started.entry((step.copy.filter, step.unit, block)).or_default() += 1;
                prop_assert!(!ended.contains(&(step.copy, step.unit)), "a buffer after the end of its unit");
            }
            What::Sent(..) => sent += 1,
            What::Arrived(_) => arrived += 1,
            What::Ended => prop_assert!(ended.insert((step.copy, step.unit)), "a unit ends once"),
            What::Done(_) | What::Acknowledged(..) => {}
        }
    }
    prop_assert_eq!(sent, arrived);
    prop_assert_eq!(ended.len(), setup.plan.all().count() * setup.units.len());
    for filter in 0..setup.plan.layout.filters.len() {
        for (unit, of) in setup.units.iter().enumerate() {
            for block in 0..of.blocks.len() as u64 {
                let times = started.get(&(filter, unit, block)).copied().unwrap_or(0);
                prop_assert_eq!(
                    times,
                    ways(setup, filter),
                    "filter {}, unit {}, block {}",
                    filter,
                    unit,
                    block
                );
            }
        }
    }
    for (filter, copies) in outcome.copies.iter().enumerate() {
        for copy in copies {
            let in_order = copy.spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            prop_assert!(in_order, "a copy of {filter} works on one buffer at a time");
        }
    }
    Ok(())
}

/// How many buffers each pair of copies had between them at once, counted from the trace alone.
fn unacknowledged(steps: &[Step]) -> u64 {
    let mut under_way: BTreeMap<(CopyId, CopyId), (u64, u64)> = BTreeMap::new();
    let mut most = 0;
    for step in steps {
        match step.what {
            What::Sent(_, to) => {
                let (sent, acknowledged) = under_way.entry((step.copy, to)).or_default();
                *sent += 1;
                most = most.max(*sent - *acknowledged);
            }
            What::Acknowledged(by, in_all) => under_way.entry((step.copy, by)).or_default().1 = in_all,
            _ => {}
        }
    }
    most
}

/// No less than what its busiest copy works or its busiest receiver receives, and no more than
/// everything one after the other.
fn bounds(setup: &Setup, steps: &[Step]) -> (u64, u64) {
    let (plan, transport) = (&setup.plan, &setup.transport);
    let host = |copy: CopyId| plan.host_of(plan.worker_of(copy));
    let mut working: BTreeMap<CopyId, u64> = BTreeMap::new();
    let mut receiving: BTreeMap<&str, u64> = BTreeMap::new();
    let mut all = 0;
    for step in steps {
        let bytes = |block: u64| setup.units[step.unit].blocks[block as usize];
        match step.what {
            What::Started(block) => {
                let cost = setup.costs[step.copy.filter];
                let slowness = setup.slowness.get(host(step.copy)).copied().unwrap_or(1000);
                let time = (cost.fixed + cost.per_byte * bytes(block)) * slowness / 1000;
                *working.entry(step.copy).or_default() += time;
                // And the acknowledgement.
                all += time + transport.alone(0);
            }
            What::Sent(block, to) if host(step.copy) != host(to) => {
                let gap = transport.gap(bytes(block));
                *receiving.entry(host(to)).or_default() += gap;
                all += 2 * gap + transport.wire(bytes(block));
            }
            // The marks that end the unit.
            What::Ended => {
                let outputs = plan.layout.outputs(step.copy.filter);
                let told: usize = outputs.map(|s| plan.count(plan.layout.streams[s].to)).sum();
                all += told as u64 * transport.alone(0);
            }
            _ => {}
        }
    }
    let least = working.into_values().chain(receiving.into_values()).max().unwrap_or(0);
    (least, all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn any_group_keeps_the_rules(setup in setup()) {
        let (outcome, steps) = trace(&setup);
        let (again, same) = trace(&setup);
        prop_assert!(outcome == again && steps == same, "the same input gives the same trace");
        prop_assert!(steps.windows(2).all(|pair| pair[0].at <= pair[1].at), "time goes forward");
        conserved(&setup, &outcome, &steps)?;
        // All streams of these layouts have the same credits, and no two filters have two streams
        // between them.
        let credits = setup.plan.layout.streams[0].credits as u64;
        let most = outcome.copies.iter().flatten().map(|copy| copy.most_unacknowledged).max();
        prop_assert!(most.unwrap_or(0) <= credits);
        prop_assert_eq!(unacknowledged(&steps), most.unwrap_or(0));
        let (least, all) = bounds(&setup, &steps);
        prop_assert!((least..=all).contains(&outcome.ended), "{} <= {} <= {}", least, outcome.ended, all);
    }

    /// One producer, nodes of the same speed, buffers of the same size: the copy with the fewest
    /// buffers is the one whose turn it is.
    #[test]
    fn at_equal_speeds_demand_driven_is_round_robin(
        consumers in 1usize..6,
        credits in 1usize..40,
        transport in transport(),
        per_byte in 0u64..40,
        bytes in 1u64..20_000,
        count in 1usize..200,
    ) {
        let of = |policy| {
            let setup = Setup {
                // A host for each copy: the producer's is the first.
                plan: plan(&[1, consumers], &[(0, 1)], consumers + 1, credits, policy),
                transport: transport.clone(),
                costs: vec![Cost::default(), Cost { per_byte, fixed: 0 }],
                slowness: BTreeMap::new(),
                units: vec![Unit { blocks: vec![bytes; count], first: 0 }],
                pace: Pace::BackToBack,
            };
            run(&setup).units[0]
        };
        prop_assert_eq!(of(Policy::RoundRobin), of(Policy::DemandDriven));
    }
}

#[test]
fn a_lone_buffer_takes_its_one_way_time_and_a_stream_its_gaps() {
    let transport = Profile::linear("t", 10_000, 2_000, 8_000_000_000);
    let setup = |count, pace| Setup {
        plan: plan(&[1, 1], &[(0, 1)], 2, 32, Policy::RoundRobin),
        transport: transport.clone(),
        costs: vec![Cost::default(), Cost { per_byte: 1, fixed: 500 }],
        slowness: BTreeMap::from([("h0".into(), 1000), ("h1".into(), 2000)]),
        units: vec![Unit { blocks: vec![1000; count], first: 0 }],
        pace,
    };
    let one = run(&setup(1, Pace::OneByOne)).units[0];
    assert_eq!(one.answered, 10_000 + 1000 + 2 * 1500);
    // Its gap and its computation are 3 us each.
    let hundred = run(&setup(100, Pace::BackToBack)).units[0];
    assert_eq!(hundred.answered, one.answered + 99 * 3000);
    assert_eq!(run(&setup(0, Pace::OneByOne)).units[0].answered, 0);
}

#[test]
fn a_credit_comes_back_when_the_consumer_starts() {
    let setup = Setup {
        plan: plan(&[1, 1], &[(0, 1)], 2, 1, Policy::RoundRobin),
        transport: Profile::linear("t", 10_000, 2_000, 8_000_000_000),
        costs: vec![Cost::default(), Cost { per_byte: 0, fixed: 500_000 }],
        slowness: BTreeMap::new(),
        units: vec![Unit { blocks: vec![1000; 3], first: 0 }],
        pace: Pace::BackToBack,
    };
    let sent: Vec<u64> = trace(&setup)
        .1
        .iter()
        .filter(|step| matches!(step.what, What::Sent(..)))
        .map(|step| step.at)
        .collect();
    // The second as soon as the producer knows that the first one was started on; the third when
    // the first is done, and so the second started on.
    assert_eq!(sent, [0, 11_000 + 10_000, 11_000 + 500_000 + 10_000]);
}
