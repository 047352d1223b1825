//! (being written)
use crate::PhysAddr;
use arrayvec::ArrayVec;
#[derive(Clone, Debug, Default)]
pub struct AcpiInfo { pub ecam: ArrayVec<EcamRegion, 8> }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcamRegion { pub base: PhysAddr, pub segment: u16, pub first_bus: u8, pub last_bus: u8 }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpiError { NoRootPointer }
