//! A WRITE that is longer than a datagram comes in parts.
//!
//! The parts of one WRITE have one sequence number and say the same about the whole; each brings its
//! piece. They are kept until all are there; how many writes may be half there is bounded, and when one
//! more begins the oldest is given up: its client, without an answer, sends all of its parts again.

use super::limits::MAX_WRITE_PARTS;
use crate::header::Flags;

/// Writes of one session that may be half there.
pub const HALF_ASSEMBLED: usize = 16;

/// What every part of one WRITE says about the whole. (Not the cookie: a part that is sent again may
/// carry another one.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteShape {
    /// The WRITE's number.
    pub sequence: u64,
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u32,
    /// FUA or none.
    pub flags: Flags,
    /// How many parts it has, from 1 to [`MAX_WRITE_PARTS`].
    pub parts: u16,
}

/// The pieces of a complete WRITE, first part first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<T> {
    pieces: [Option<T>; MAX_WRITE_PARTS],
}

impl<T> Parts<T> {
    const fn none() -> Self {
        Self { pieces: [const { None }; MAX_WRITE_PARTS] }
    }

    /// A WRITE of one part.
    pub fn one(piece: T) -> Self {
        let mut parts = Self::none();
        parts.pieces[0] = Some(piece);
        parts
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pieces.iter().flatten().count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> IntoIterator for Parts<T> {
    type Item = T;
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<T>, MAX_WRITE_PARTS>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

/// What became of a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Added<T> {
    /// Others are missing. If another WRITE had to make room, these are its pieces.
    Kept {
        /// Given up.
        given_up: Option<Parts<T>>,
    },
    /// It was the last one.
    Complete(Parts<T>),
    /// It is there already; here it is back.
    Doubled(T),
    /// It contradicts the parts that are there, or is none of the parts it speaks of; here it is back.
    Contradicts(T),
}

#[derive(Debug, Clone)]
struct Half<T> {
    shape: WriteShape,
    parts: Parts<T>,
    missing: u16,
    /// When its first part came, in arrivals.
    since: u64,
}

/// The WRITEs of one session that are half there. `T` is a piece: a frame, with its owner.
#[derive(Debug)]
pub struct Assemblies<T> {
    halves: [Option<Half<T>>; HALF_ASSEMBLED],
    arrivals: u64,
}

impl<T> Assemblies<T> {
    /// None.
    pub const fn new() -> Self {
        Self { halves: [const { None }; HALF_ASSEMBLED], arrivals: 0 }
    }

    /// A part has come.
    pub fn add(&mut self, shape: WriteShape, part: u16, piece: T) -> Added<T> {
        if part >= shape.parts || usize::from(shape.parts) > MAX_WRITE_PARTS {
            return Added::Contradicts(piece);
        }
        if shape.parts == 1 {
            return Added::Complete(Parts::one(piece));
        }
        let place = self
            .halves
            .iter()
            .position(|half| half.as_ref().is_some_and(|half| half.shape.sequence == shape.sequence));
        if let Some(place) = place {
            return self.add_to(place, shape, part, piece);
        }
        let place = self.roomiest();
        let mut half = Half { shape, parts: Parts::none(), missing: shape.parts - 1, since: self.arrivals };
        half.parts.pieces[usize::from(part)] = Some(piece);
        self.arrivals += 1;
        let given_up = self.halves[place].replace(half).map(|half| half.parts);
        Added::Kept { given_up }
    }

    fn add_to(&mut self, place: usize, shape: WriteShape, part: u16, piece: T) -> Added<T> {
        let Some(half) = &mut self.halves[place] else { return Added::Contradicts(piece) };
        if half.shape != shape {
            return Added::Contradicts(piece);
        }
        let room = &mut half.parts.pieces[usize::from(part)];
        if room.is_some() {
            return Added::Doubled(piece);
        }
        *room = Some(piece);
        half.missing -= 1;
        if half.missing > 0 {
            return Added::Kept { given_up: None };
        }
        match self.halves[place].take() {
            Some(half) => Added::Complete(half.parts),
            None => Added::Kept { given_up: None },
        }
    }

    /// A free place, or else the oldest one's.
    fn roomiest(&self) -> usize {
        let age = |half: &Option<Half<T>>| half.as_ref().map_or(0, |half| half.since + 1);
        (0..HALF_ASSEMBLED).min_by_key(|&place| age(&self.halves[place])).unwrap_or(0)
    }

    /// Pieces that wait for others.
    pub fn pieces(&self) -> usize {
        self.halves.iter().flatten().map(|half| half.parts.len()).sum()
    }

    /// Gives up everything.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl<T> Default for Assemblies<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn shape(sequence: u64, parts: u16) -> WriteShape {
        WriteShape { sequence, offset: sequence * 4096, length: 4096, flags: Flags::NONE, parts }
    }

    #[test]
    fn parts_come_in_any_order_and_some_twice() {
        let mut assemblies = Assemblies::new();
        for part in [2, 0, 3] {
            assert_eq!(assemblies.add(shape(1, 4), part, part), Added::Kept { given_up: None });
        }
        assert_eq!(assemblies.add(shape(1, 4), 3, 99), Added::Doubled(99));
        assert_eq!(assemblies.pieces(), 3);
        let Added::Complete(parts) = assemblies.add(shape(1, 4), 1, 1) else { panic!("not complete") };
        assert_eq!(parts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(assemblies.pieces(), 0);
    }

    #[test]
    fn contradictions_and_nonsense_come_back() {
        let mut assemblies = Assemblies::new();
        assert_eq!(assemblies.add(shape(1, 4), 0, 'a'), Added::Kept { given_up: None });
        let elsewhere = WriteShape { offset: 0, ..shape(1, 4) };
        assert_eq!(assemblies.add(elsewhere, 1, 'b'), Added::Contradicts('b'));
        assert_eq!(assemblies.add(shape(2, 4), 4, 'c'), Added::Contradicts('c'));
        assert_eq!(assemblies.add(shape(2, 0), 0, 'd'), Added::Contradicts('d'));
        assert_eq!(assemblies.add(shape(2, 9), 0, 'e'), Added::Contradicts('e'));
        assert_eq!(assemblies.add(shape(3, 1), 0, 'f'), Added::Complete(Parts::one('f')));
    }

    #[test]
    fn the_oldest_is_given_up() {
        let mut assemblies = Assemblies::new();
        for sequence in 1..=HALF_ASSEMBLED as u64 {
            assert_eq!(assemblies.add(shape(sequence, 2), 0, sequence), Added::Kept { given_up: None });
        }
        assert!(matches!(assemblies.add(shape(1, 2), 1, 1), Added::Complete(_)));
        assert_eq!(assemblies.add(shape(100, 2), 0, 100), Added::Kept { given_up: None });
        let Added::Kept { given_up: Some(old) } = assemblies.add(shape(101, 2), 0, 101) else {
            panic!("no room")
        };
        assert_eq!(old.into_iter().collect::<Vec<_>>(), [2]);
    }

    proptest! {
        /// No piece is lost or doubled, and what is complete has its own parts in their order.
        #[test]
        fn pieces_are_conserved(steps in proptest::collection::vec((1u64..40, 0u16..9, 1u16..9), 0..400)) {
            let mut assemblies = Assemblies::new();
            let (mut inside, mut shapes) = (0usize, HashMap::new());
            for (sequence, part, parts) in steps {
                let parts = *shapes.entry(sequence).or_insert(parts);
                match assemblies.add(shape(sequence, parts), part, (sequence, part)) {
                    Added::Kept { given_up } => inside = inside + 1 - given_up.map_or(0, |old| old.len()),
                    Added::Complete(whole) => {
                        inside = inside + 1 - whole.len();
                        let pieces: Vec<_> = whole.into_iter().collect();
                        prop_assert_eq!(pieces, (0..parts).map(|part| (sequence, part)).collect::<Vec<_>>());
                    }
                    Added::Doubled(piece) | Added::Contradicts(piece) => {
                        prop_assert_eq!(piece, (sequence, part));
                    }
                }
                prop_assert_eq!(assemblies.pieces(), inside);
                prop_assert!(inside <= HALF_ASSEMBLED * (MAX_WRITE_PARTS - 1));
            }
        }
    }
}
