//! Parameters that cannot be read from JSON.
#![allow(unused)]

use onemark_macros::{step, workflow};

#[step]
async fn mutable(list: &mut Vec<u8>) -> Result<(), String> {
    Ok(())
}

#[step]
async fn pattern((a, b): (u8, u8)) -> Result<(), String> {
    Ok(())
}

#[step]
async fn ignored(_: u8) -> Result<(), String> {
    Ok(())
}

#[step]
async fn long_lived(name: &'static str) -> Result<(), String> {
    Ok(())
}

#[step]
async fn inner(names: &[&str]) -> Result<(), String> {
    Ok(())
}

#[workflow]
async fn inner_of_workflow(names: Vec<&'static str>) -> Result<(), String> {
    Ok(())
}

#[step]
async fn twice(name: &&str) -> Result<(), String> {
    Ok(())
}

#[step]
async fn some_type(name: impl ToString) -> Result<(), String> {
    Ok(())
}

#[step]
async fn object(name: &dyn ToString) -> Result<(), String> {
    Ok(())
}

#[step]
async fn option(name: Option<&mut String>) -> Result<(), String> {
    Ok(())
}

fn main() {}
