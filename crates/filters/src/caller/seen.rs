//! The status of a group: workers are asked, and their answers are put together.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::knowledge::{Asked, Caller};
use crate::messages::ToWorker;
use crate::stats::Figures;
use crate::status::{CopyStatus, Status};

impl Caller {
    pub(super) fn ask(&mut self, answer: Sender<Status>) {
        self.asked_number += 1;
        self.say_to_all(&ToWorker::Report { number: self.asked_number });
        let all = (0..self.workers.len()).filter(|&at| self.workers[at].control.is_some()).collect();
        // Earlier requests are answered by these answers, too.
        for asked in &mut self.asked {
            asked.missing = BTreeSet::clone(&all);
        }
        self.asked.push(Asked { answer, missing: all, until: Instant::now() + Duration::from_secs(1) });
        self.answer();
    }

    /// Answers the requests for which nothing is missing.
    pub(super) fn answer(&mut self) {
        let (ready, waiting) = std::mem::take(&mut self.asked)
            .into_iter()
            .partition::<Vec<_>, _>(|asked| asked.missing.is_empty());
        self.asked = waiting;
        for asked in ready {
            let _ = asked.answer.send(self.status()); // whoever asked may be gone
        }
    }

    pub(super) fn status(&self) -> Status {
        let under_way = self.units.values().filter(|unit| unit.open.is_some() && !unit.cancelled).count();
        let waiting = self.units.values().filter(|unit| unit.open.is_none()).count();
        let copies = self.terms.plan.all().enumerate().map(|(index, copy)| {
            let at = self.terms.plan.worker_of(copy);
            let worker = &self.workers[at];
            let state = worker.states.iter().find(|(known, ..)| *known == copy);
            CopyStatus {
                name: self.terms.plan.name_of(copy),
                host: self.terms.plan.host_of(at).to_string(),
                machine: worker.hello.as_ref().map_or(String::new(), |hello| hello.machine.clone()),
                pid: worker.hello.as_ref().map_or(0, |hello| hello.pid),
                state: state.map(|&(_, state, _)| state),
                uow: state.map_or(0, |&(_, _, uow)| uow),
                ended: self.ended[index],
            }
        });
        let mut figures = self.old.clone();
        for worker in &self.workers {
            join(&mut figures, &worker.figures);
        }
        let streams = &self.terms.plan.layout.streams;
        let place = |figures: &Figures| streams.iter().position(|stream| stream.name == figures.stream);
        figures.sort_by_cached_key(|it| (place(it), it.producer.clone(), it.consumer.clone()));
        Status {
            copies: copies.collect(),
            figures,
            units: [self.counted[0], self.counted[1], under_way, waiting],
            losses: self.losses,
        }
    }

    /// Keeps the counts of an attempt that is over.
    pub(super) fn keep(&mut self, mut figures: Vec<Figures>) {
        for figures in &mut figures {
            figures.unacknowledged = 0;
        }
        join(&mut self.old, &figures);
    }
}

/// Adds figures to those of the same stream and copies.
fn join(all: &mut Vec<Figures>, more: &[Figures]) {
    let key =
        |figures: &Figures| (figures.stream.clone(), figures.producer.clone(), figures.consumer.clone());
    for figures in more {
        match all.iter_mut().find(|known| key(known) == key(figures)) {
            Some(known) => known.join(figures),
            None => all.push(figures.clone()),
        }
    }
}
