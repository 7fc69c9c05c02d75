//! A contact that is one row, though it is saved twice: it is written by what it is.

use onemark_sdk::prelude::*;

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Contact {
    pub email: String,
    pub name: String,
}

#[workflow]
pub async fn save_contact(contact: Contact, database: String) -> WorkflowResult<()> {
    Ok(upsert(&contact, &database).await?)
}

/// `insert into contacts … on conflict (email) do update`: the row is known by its email address, not by a number
/// that each insert would draw anew. Writing it again changes nothing.
#[step]
async fn upsert(contact: &Contact, database: &str) -> Result<(), StepFailed> {
    outside::put(&format!("{database}/contacts/{}", contact.email), contact).await
}
