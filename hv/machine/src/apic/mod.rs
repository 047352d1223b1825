//! Interrupt messages between local APICs and the I/O APIC (SDM vol. 3 ch. 11; AMD APM vol. 2
//! ch. 16; Intel 82093AA data sheet).
//!
//! Each guest CPU's local APIC belongs to the task that runs that CPU and is touched by nobody
//! else. What other CPUs and devices have for it goes through its [`bus::Mailbox`].

pub mod bus;
pub mod ioapic;
pub mod local;
pub mod timer;

/// How an interrupt message is to be taken (SDM vol. 3 sec. 11.6.1, 82093AA sec. 3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    Fixed = 0,
    LowestPriority = 1,
    SystemManagement = 2,
    Nmi = 4,
    Init = 5,
    StartUp = 6,
    ExternalInterrupt = 7,
}

impl DeliveryMode {
    /// From bits 10:8 of ICR, LVT and redirection entries; 3 is reserved.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Some(match (bits >> 8) & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::SystemManagement,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::StartUp,
            7 => Self::ExternalInterrupt,
            _ => return None,
        })
    }
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The CPU whose APIC identifier this is.
    Physical(u32),
    /// Every CPU whose logical identifier shares a bit with this, as its own mode reads it.
    Logical(u32),
    All,
    AllBut(usize),
    /// The CPU of this index (a shorthand for the sender itself).
    Index(usize),
}

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub destination: Destination,
    pub mode: DeliveryMode,
    pub vector: u8,
    pub level_triggered: bool,
}

/// A set of the 256 interrupt vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet([u64; 4]);

impl VectorSet {
    pub fn insert(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] |= 1 << (vector & 63);
    }

    pub fn remove(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] &= !(1 << (vector & 63));
    }

    pub fn contains(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 6)] & (1 << (vector & 63)) != 0
    }

    /// The highest member, which has the highest priority.
    pub fn highest(&self) -> Option<u8> {
        let word = (0..4).rev().find(|&word| self.0[word] != 0)?;
        Some((word as u32 * 64 + 63 - self.0[word].leading_zeros()) as u8)
    }

    /// Adds, in each 64, the bits of `word`; those in `keep` only are taken from the set's past.
    pub fn merge_word(&mut self, word: usize, bits: u64) {
        self.0[word & 3] |= bits;
    }

    /// In the places of `mask` the set becomes `bits`.
    pub fn replace_word(&mut self, word: usize, mask: u64, bits: u64) {
        let word = &mut self.0[word & 3];
        *word = *word & !mask | bits & mask;
    }

    /// The 32 bits that register `index` of eight shows.
    pub fn register(&self, index: usize) -> u32 {
        let word = self.0[index >> 1 & 3];
        if index & 1 == 0 { word as u32 } else { (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_vector_wins_across_words() {
        let mut set = VectorSet::default();
        assert_eq!(set.highest(), None);
        for (vector, highest) in [(0x10, 0x10), (0x3f, 0x3f), (0x40, 0x40), (0xff, 0xff), (0x80, 0xff)] {
            set.insert(vector);
            assert_eq!(set.highest(), Some(highest));
        }
        set.remove(0xff);
        assert_eq!(set.highest(), Some(0x80));
        assert_eq!((set.register(4), set.register(1)), (1, 1 << 31));
    }
}
