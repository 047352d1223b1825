//! Commands about the block service.
use super::Command;
pub(super) const COMMANDS: &[Command] = &[];
