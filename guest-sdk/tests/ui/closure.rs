//! What a closure step cannot capture: a change would be lost with the copy of the workflow in which it runs.

use std::cell::{Cell, RefCell};

use onemark_sdk::prelude::*;

async fn counts() -> WorkflowResult<()> {
    let mut count = 0;
    step("mutable", || async {
        count += 1;
        Ok(())
    })
    .await?;

    let cell = Cell::new(0);
    step("cell", || async {
        cell.set(1);
        Ok(())
    })
    .await?;

    let list = RefCell::new(Vec::<u32>::new());
    step("ref cell", || async {
        list.borrow_mut().push(1);
        Ok(())
    })
    .await?;
    Ok(())
}

fn main() {}
