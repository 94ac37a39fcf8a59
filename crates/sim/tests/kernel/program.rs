//! A random program: what it does next is drawn from a seed, done in both worlds, and compared.

use std::collections::VecDeque;

use syscalls::Sysno;

use super::dice::Dice;
use super::world::{Answer, Model, Real, World};

/// What a descriptor is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Tcp,
    Stream,
    Packets,
    Datagrams,
    Event,
    Set,
}

/// A descriptor of the program: its number in each world.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub class: Class,
    pub fds: [usize; 2],
}

/// What a step has shown, in one world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub answer: Answer,
    pub bytes: Vec<u8>,
}

pub struct Program {
    pub dice: Dice,
    /// The real kernel, or what stands for it.
    pub real: Box<dyn World>,
    pub model: Model,
    pub slots: Vec<Slot>,
    /// Addresses of listeners, in each world.
    pub places: Vec<[Vec<u8>; 2]>,
    pub log: VecDeque<String>,
    /// To look for what came late.
    pub slowly: bool,
    pub seed: u64,
    pub sent: usize,
    pub names: usize,
    /// How many steps a story has.
    pub kept: usize,
}

/// A difference, with what came before.
pub type Checked = Result<(), String>;

impl Program {
    pub fn new(seed: u64, uid: u32, slowly: bool) -> Program {
        Program {
            dice: Dice::new(seed),
            real: Box::new(Real),
            model: Model::new(seed, uid),
            slots: Vec::new(),
            places: Vec::new(),
            log: VecDeque::new(),
            slowly,
            seed,
            sent: 0,
            names: 0,
            kept: std::env::var("SIM_KERNEL_STORY").ok().and_then(|text| text.parse().ok()).unwrap_or(30),
        }
    }

    /// Does a step in both worlds: `step` is told which world, and to look at what else it has
    /// shown. Says whether that succeeded, if it was the same.
    pub fn both(
        &mut self,
        what: String,
        mut step: impl FnMut(&mut dyn World, usize) -> Shown,
    ) -> Result<bool, String> {
        self.real.tick();
        self.model.tick();
        let real = step(&mut *self.real, 0);
        if self.slowly {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let model = step(&mut self.model, 1);
        let same = real == model;
        let short = |shown: &Shown| {
            let answer = match shown.answer {
                Ok(value) => value.to_string(),
                Err(errno) => format!("{errno:?}"),
            };
            let bytes: String = shown.bytes.iter().take(48).map(|byte| format!("{byte:02x}")).collect();
            format!("{answer:<14} {bytes}")
        };
        let mark = if same { " " } else { "!" };
        self.log.push_back(format!("{mark} {what:<58} {}", short(&real)));
        if !same {
            self.log.push_back(format!("! {:<58} {}", "the model:", short(&model)));
        }
        while self.log.len() > self.kept {
            self.log.pop_front();
        }
        if same { Ok(real.answer.is_ok()) } else { Err(self.story()) }
    }

    pub fn story(&self) -> String {
        let log: Vec<&str> = self.log.iter().map(String::as_str).collect();
        format!("seed {}: the two kernels differ\n{}", self.seed, log.join("\n"))
    }

    /// A step that makes descriptors: their numbers differ, so only whether there are any is
    /// compared.
    pub fn makes(
        &mut self,
        class: Class,
        what: String,
        mut step: impl FnMut(&mut dyn World, usize) -> Answer,
    ) -> Result<Option<usize>, String> {
        let mut fds = [0; 2];
        let done = self.both(what, |world, index| {
            let answer = step(world, index);
            fds[index] = answer.unwrap_or(0);
            Shown { answer: answer.map(|_| 0), bytes: Vec::new() }
        })?;
        if !done {
            return Ok(None);
        }
        self.slots.push(Slot { class, fds });
        let slot = self.slots.len() - 1;
        if let Some(last) = self.log.back_mut() {
            last.push_str(&format!(" -> #{slot}"));
        }
        Ok(Some(slot))
    }

    /// A call whose only outcome is its answer.
    pub fn plain(
        &mut self,
        what: String,
        number: Sysno,
        args: impl Fn(usize) -> [usize; 6],
    ) -> Result<bool, String> {
        self.both(what, |world, index| Shown { answer: world.call(number, args(index)), bytes: Vec::new() })
    }

    /// One of the descriptors of these classes.
    pub fn pick(&mut self, classes: &[Class]) -> Option<usize> {
        let fit: Vec<usize> =
            (0..self.slots.len()).filter(|&slot| classes.contains(&self.slots[slot].class)).collect();
        if fit.is_empty() { None } else { Some(fit[self.dice.below(fit.len())]) }
    }

    pub fn any(&mut self) -> Option<usize> {
        if self.slots.is_empty() { None } else { Some(self.dice.below(self.slots.len())) }
    }

    /// A program of the model alone, held against itself: segments take their time, and writes are
    /// cut short.
    pub fn alone(seed: u64) -> Program {
        let mut program = Program::new(seed, 0, false);
        program.real = Box::new(Model::slow(seed, 0));
        program.model = Model::slow(seed, 0);
        program
    }

    /// Ends what is left.
    pub fn finish(mut self) {
        for slot in core::mem::take(&mut self.slots) {
            let _ = self.real.call(Sysno::close, [slot.fds[0], 0, 0, 0, 0, 0]);
        }
    }

    /// Runs it: a mixture of calls that is drawn first, so that programs differ in what they are
    /// about.
    pub fn run(&mut self, steps: usize) -> Checked {
        let kinds = super::steps::KINDS;
        let weights: Vec<usize> = kinds.iter().map(|&(weight, _)| weight * self.dice.below(4)).collect();
        let sum: usize = weights.iter().sum::<usize>().max(1);
        self.begin()?;
        for _ in 0..steps {
            let mut drawn = self.dice.below(sum);
            let chosen = weights.iter().position(|&weight| {
                let found = drawn < weight;
                drawn = drawn.wrapping_sub(weight);
                found
            });
            (kinds[chosen.unwrap_or(0)].1)(self)?;
        }
        // All that can be asked is asked once more.
        for slot in 0..self.slots.len() {
            self.state_of(slot)?;
        }
        Ok(())
    }
}
