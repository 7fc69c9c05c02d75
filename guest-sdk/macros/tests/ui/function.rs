//! Functions that cannot be steps or workflows.
#![allow(unused)]

use onemark_macros::{step, workflow};

#[step]
fn not_async() -> Result<(), String> {
    Ok(())
}

#[workflow]
fn not_async_workflow() -> Result<(), String> {
    Ok(())
}

#[step]
async fn no_result() {}

#[workflow]
async fn no_workflow_result() {}

#[step]
async fn generic<T: Clone>(value: T) -> Result<T, String> {
    Ok(value)
}

#[step]
async fn lifetime<'a>(value: &'a str) -> Result<(), String> {
    Ok(())
}

#[step]
async unsafe fn dangerous() -> Result<(), String> {
    Ok(())
}

struct Orders;

impl Orders {
    #[step]
    async fn method(&self, id: u32) -> Result<(), String> {
        Ok(())
    }
}

#[step]
struct NoFunction;

fn main() {}
