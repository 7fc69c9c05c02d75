//! How much memory an instance may take.

use wasmtime::ResourceLimiter;

/// More linear memory was asked for than the limit allows. Ends the instance: a guest that saw the refusal
/// could go on differently on another host.
#[derive(Debug, thiserror::Error)]
#[error("out of memory: {asked} bytes of linear memory were asked for, the limit is {limit}")]
pub struct OutOfMemory {
    pub asked: usize,
    pub limit: usize,
}

/// Bounds the linear memory of one instance.
#[derive(Debug)]
pub struct MemoryLimit {
    limit: usize,
}

/// Elements that a table may hold: function pointers of the guest, a few thousand in large components.
pub const MAX_TABLE_ELEMENTS: usize = 100_000;

/// Handles that an instance may hold at once: each step, timer, child and hook in flight has one or two.
pub const MAX_HANDLES: usize = 250_000;

impl MemoryLimit {
    pub fn new(bytes: u64) -> Self {
        Self {
            limit: usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.limit {
            let (asked, limit) = (desired, self.limit);
            return Err(OutOfMemory { asked, limit }.into());
        }
        // Over the guest's own declared maximum: the guest's rule, the same everywhere.
        Ok(maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        // The pinned limit allows it and this host cannot give it: never a different result in replay.
        Err(error.context("the host could not give memory that the limit allows"))
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}
