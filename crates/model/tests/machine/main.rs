//! What two processes do to each other's connection, in every order: models around the library's
//! own deciders (`sockets/src/path`), which [`library`] compiles. Each rule of theirs is switched
//! off once, and a property must fail then: that shows both that the model can see and that the
//! rule is needed.

mod anew;
mod claim;
mod closing;
mod library;
mod offer;
mod paths;
mod recall;
mod unfinished;

use library::rules::Rule;
use stateright::{Checker, HasDiscoveries, Model};

/// Visits every state: all properties hold, and all that is to be reached is.
fn sound<M>(model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + Send + Sync + std::fmt::Debug + Clone + PartialEq,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    let began = std::time::Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{} states, {:?}", checker.unique_state_count(), began.elapsed());
    checker.assert_properties();
}

/// A model with something left out, of which the property that begins so must fail.
fn caught<M>(without: impl std::fmt::Debug, model: M, property: &str)
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + Send + Sync + std::fmt::Debug + Clone + PartialEq,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    let names = model.properties().into_iter().map(|property| property.name);
    let fails = HasDiscoveries::AnyOf(names.filter(|name| name.starts_with(property)).collect());
    let checker = model.checker().threads(2).finish_when(fails).spawn_bfs().join();
    let failed: Vec<_> =
        checker.discoveries().into_keys().filter(|name| !name.starts_with("reached")).collect();
    assert!(failed.iter().any(|name| name.starts_with(property)), "without {without:?}: {failed:?}");
}

#[test]
fn a_rule_has_its_place_in_the_list_as_its_number() {
    let numbers: Vec<_> = library::rules::ALL.iter().map(|&rule: &Rule| rule as usize).collect();
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>());
}
