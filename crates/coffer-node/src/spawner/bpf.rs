//! Classic BPF with labels, and a search over ranges of numbers in as few instructions as possible.

/// A jump's destination, resolved when the program is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// The instruction that follows.
    Next,
    At(usize),
}

#[derive(Debug, Clone, Copy)]
enum Line {
    Load(u32),
    And(u32),
    Jump { test: u16, value: u32, yes: Label, no: Label },
    Return(u32),
}

pub(super) const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(super) const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(super) const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub(super) const JUMP_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Numbers from `first` to `last` go to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) to: Label,
}

/// Lines with labels that are placed later: jumps go forward only, as BPF requires.
#[derive(Default)]
pub(super) struct Assembler {
    lines: Vec<Line>,
    places: Vec<Option<usize>>,
}

impl Assembler {
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label::At(self.places.len() - 1)
    }

    pub(super) fn place(&mut self, label: Label) {
        if let Label::At(index) = label {
            self.places[index] = Some(self.lines.len());
        }
    }

    /// Loads the word at this offset of `seccomp_data`.
    pub(super) fn load(&mut self, offset: u32) {
        self.lines.push(Line::Load(offset));
    }

    /// Keeps these bits of the loaded value.
    pub(super) fn and(&mut self, bits: u32) {
        self.lines.push(Line::And(bits));
    }

    pub(super) fn jump(&mut self, test: u16, value: u32, yes: Label, no: Label) {
        self.lines.push(Line::Jump { test, value, yes, no });
    }

    pub(super) fn finish_with(&mut self, value: u32) {
        self.lines.push(Line::Return(value));
    }

    /// Jumps by the loaded value, to `otherwise` if it is none of these.
    pub(super) fn any(&mut self, cases: &[(u32, Label)], otherwise: Label) {
        let (last, init) = cases.split_last().expect("there is something to find");
        for &(value, found) in init {
            self.jump(JUMP_EQUAL, value, found, Label::Next);
        }
        self.jump(JUMP_EQUAL, last.0, last.1, otherwise);
    }

    /// Jumps by the range of the loaded number. The ranges are in order and complete.
    pub(super) fn search(&mut self, ranges: &[Range]) {
        let plan = Plan::of(ranges);
        match ranges {
            [only] => self.jump(JUMP_AT_LEAST, 0, only.to, only.to),
            _ => self.follow(ranges, &plan, 0, ranges.len() - 1),
        }
    }

    fn follow(&mut self, ranges: &[Range], plan: &Plan, first: usize, last: usize) {
        match plan.step(first, last) {
            Step::Arrived => unreachable!("a single range is jumped to"),
            Step::Equals(otherwise) => {
                let others = ranges[first..=last].iter().filter(|range| range.to != otherwise);
                let cases: Vec<_> = others.map(|range| (range.first, range.to)).collect();
                self.any(&cases, otherwise);
            }
            Step::Split(at) => {
                let leaf = |from: usize, to: usize| (from == to).then(|| ranges[from].to);
                let (low, high) = (leaf(first, at), leaf(at + 1, last));
                // If both sides continue, the upper one comes after the lower one.
                let upper = match (low, high) {
                    (None, None) => self.label(),
                    (_, high) => high.unwrap_or(Label::Next),
                };
                self.jump(JUMP_AT_LEAST, ranges[at + 1].first, upper, low.unwrap_or(Label::Next));
                if low.is_none() {
                    self.follow(ranges, plan, first, at);
                }
                if high.is_none() {
                    self.place(upper);
                    self.follow(ranges, plan, at + 1, last);
                }
            }
        }
    }

    pub(super) fn assemble(self) -> Vec<libc::sock_filter> {
        let distance = |from: usize, label: Label| match label {
            Label::Next => 0,
            Label::At(index) => {
                let to = self.places[index].expect("every label is placed");
                u8::try_from(to - from - 1).expect("the program is short")
            }
        };
        let assemble = |(at, line): (usize, &Line)| match *line {
            Line::Load(offset) => libc::sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: offset },
            Line::And(bits) => libc::sock_filter { code: AND, jt: 0, jf: 0, k: bits },
            Line::Return(value) => libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: value },
            Line::Jump { test, value, yes, no } => {
                libc::sock_filter { code: test, jt: distance(at, yes), jf: distance(at, no), k: value }
            }
        };
        self.lines.iter().enumerate().map(assemble).collect()
    }
}

/// How to tell some neighbouring ranges apart.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// There is one.
    Arrived,
    /// All go to one place but a few single numbers, which are compared one by one.
    Equals(Label),
    /// By whether the number is beyond this range.
    Split(usize),
}

/// The shortest search, found from short runs of ranges to long ones.
struct Plan {
    count: usize,
    /// By first and last range: how many instructions, and the first of them.
    best: Vec<(usize, Step)>,
}

/// Numbers that are compared in a row; more would be a slow search.
const MOST_EQUALS: usize = 6;

impl Plan {
    fn of(ranges: &[Range]) -> Self {
        let count = ranges.len();
        let mut plan = Self { count, best: vec![(0, Step::Arrived); count * count] };
        for length in 2..=count {
            for first in 0..=count - length {
                let last = first + length - 1;
                let splits = (first..last).map(|at| {
                    let cost = 1 + plan.cost(first, at) + plan.cost(at + 1, last);
                    // Of the same length, the more even one is quicker.
                    let uneven = (first + last).abs_diff(2 * at + 1);
                    (cost, uneven, Step::Split(at))
                });
                let best = splits.min_by_key(|&(cost, uneven, _)| (cost, uneven));
                let split = best.map(|(cost, _, step)| (cost, step));
                let all = split.into_iter().chain(equals(&ranges[first..=last]));
                plan.best[first * count + last] =
                    all.min_by_key(|&(cost, _)| cost).expect("two ranges can be split");
            }
        }
        plan
    }

    fn cost(&self, first: usize, last: usize) -> usize {
        self.best[first * self.count + last].0
    }

    fn step(&self, first: usize, last: usize) -> Step {
        self.best[first * self.count + last].1
    }
}

/// The cost of comparing single numbers, if all others go to one place.
fn equals(ranges: &[Range]) -> Option<(usize, Step)> {
    let wide = ranges.iter().find(|range| range.first != range.last);
    let otherwise = wide.or(ranges.first())?.to;
    let others: Vec<_> = ranges.iter().filter(|range| range.to != otherwise).collect();
    let fits = others.len() <= MOST_EQUALS && others.iter().all(|range| range.first == range.last);
    fits.then_some((others.len(), Step::Equals(otherwise)))
}
