#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError { NoSuchInput, BadVector, NoSuchCpu }
/// Maps the controllers that the MADT lists and masks every input.
pub fn init() {}
/// Routes a legacy line through the MADT's overrides; live when this returns. Gives its GSI for mask/unmask.
pub fn route_isa(irq: u8, vector: u8, cpu: usize) -> Result<u32, RouteError> { todo!() }
pub fn route_gsi(gsi: u32, vector: u8, cpu: usize, level: bool, active_low: bool) -> Result<(), RouteError> { todo!() }
pub fn mask(gsi: u32) -> Result<(), RouteError> { todo!() }
pub fn unmask(gsi: u32) -> Result<(), RouteError> { todo!() }
