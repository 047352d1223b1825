//! Commands about the guests.
use super::Command;
pub(super) const COMMANDS: &[Command] = &[];
