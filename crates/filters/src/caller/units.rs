//! The units of work of a group, from being appended to their ends.

use std::collections::BTreeSet;

use super::knowledge::{Caller, Phase};
use crate::copy::Span;
use crate::error::Failure;
use crate::layout::CopyId;
use crate::messages::ToWorker;
use crate::status::Traced;

impl Caller {
    pub(super) fn done(&mut self, uow: u64, copy: CopyId, spans: Vec<Span>) {
        let index = self.terms.plan.all().position(|known| known == copy).unwrap_or(0);
        let (name, host) = (
            self.terms.plan.name_of(copy),
            self.terms.plan.host_of(self.terms.plan.worker_of(copy)).to_string(),
        );
        for span in spans {
            self.spans.push(Traced { copy: name.clone(), host: host.clone(), index, uow, span });
        }
        self.ended[index] += 1;
        let Some(unit) = self.units.get_mut(&uow) else { return };
        let Some(open) = &mut unit.open else { return };
        open.remove(&copy);
        let left = open.len();
        let all = self.ended.len();
        unit.shared.progress(all - left, all);
        // A suspicion ends with its time: until then the outcome is not known.
        if left == 0 && unit.suspected.is_none() {
            self.retire(uow);
        }
    }

    /// All copies have ended a unit of work.
    pub(super) fn retire(&mut self, uow: u64) {
        if let Some(unit) = self.units.remove(&uow)
            && !unit.cancelled
        {
            self.counted[0] += 1;
            unit.shared.end(Ok(()));
        }
    }

    /// Ends a unit of work with a failure, and tells all workers to leave it.
    pub(super) fn fail(&mut self, uow: u64, why: Failure) {
        let Some(unit) = self.units.get_mut(&uow) else { return };
        if unit.cancelled {
            return;
        }
        unit.cancelled = true;
        unit.suspected = None;
        self.counted[1] += 1;
        unit.shared.end(Err(why));
        match &unit.open {
            None => {
                self.units.remove(&uow);
            }
            Some(open) if open.is_empty() => self.retire(uow),
            Some(_) => self.say_to_all(&ToWorker::Cancel { uow }),
        }
    }

    pub(super) fn fail_all_under_way(&mut self, failure: &Failure) {
        let under_way: Vec<u64> =
            self.units.iter().filter(|(_, unit)| unit.open.is_some()).map(|(&uow, _)| uow).collect();
        for uow in under_way {
            // The remaining workers work in vain until they get the next attempt.
            self.say_to_all(&ToWorker::Cancel { uow });
            let Some(unit) = self.units.get_mut(&uow) else { continue };
            if !unit.cancelled && unit.reruns > 0 {
                unit.reruns -= 1;
                unit.open = None;
                unit.suspected = None;
                unit.shared.again();
                continue;
            }
            // No worker will report its end: the attempt is over.
            unit.open = Some(BTreeSet::new());
            if unit.cancelled {
                self.units.remove(&uow);
            } else {
                self.fail(uow, failure.clone());
            }
        }
    }

    /// Begins units of work that there is room for.
    pub(super) fn dispatch(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        let under_way = self.units.values().filter(|unit| unit.open.is_some()).count();
        let waiting = self.units.iter().filter(|(_, unit)| unit.open.is_none()).map(|(&uow, _)| uow);
        let next: Vec<u64> = waiting.take(self.terms.window.saturating_sub(under_way)).collect();
        for uow in next {
            let copies = self.terms.plan.all().collect();
            let Some(unit) = self.units.get_mut(&uow) else { continue };
            unit.open = Some(copies);
            let params = unit.params.clone();
            self.say_to_all(&ToWorker::Append { uow, params });
        }
    }
}
