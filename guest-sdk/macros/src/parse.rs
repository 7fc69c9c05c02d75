//! What was written: options, and the item that they stand on.

use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{DeriveInput, Ident, ItemFn, Lit, Result, Token, Type, parenthesized, token};

/// `#[step(options)] item`
pub struct Function {
    pub options: Vec<Setting>,
    pub item: ItemFn,
}

/// `name`, `name = value` or `name(options)`
pub struct Setting {
    pub name: Ident,
    pub value: Value,
}

pub enum Value {
    None,
    Literal(Lit),
    Type(Box<Type>),
    Settings(Vec<Setting>),
}

pub fn function(options: TokenStream, item: TokenStream) -> Result<Function> {
    Ok(Function {
        options: syn::parse2::<Settings>(options)?.0,
        item: syn::parse2(item)?,
    })
}

pub fn error(item: TokenStream) -> Result<DeriveInput> {
    syn::parse2(item)
}

struct Settings(Vec<Setting>);

impl Parse for Settings {
    fn parse(input: ParseStream) -> Result<Self> {
        Ok(Self(
            Punctuated::<_, Token![,]>::parse_terminated(input)?
                .into_iter()
                .collect(),
        ))
    }
}

impl Parse for Setting {
    fn parse(input: ParseStream) -> Result<Self> {
        Ok(Self {
            name: input.parse()?,
            value: input.parse()?,
        })
    }
}

impl Parse for Value {
    fn parse(input: ParseStream) -> Result<Self> {
        if input.peek(token::Paren) {
            let options;
            parenthesized!(options in input);
            return Ok(Self::Settings(options.parse::<Settings>()?.0));
        }
        if input.parse::<Option<Token![=]>>()?.is_none() {
            return Ok(Self::None);
        }
        if input.peek(Lit) {
            return input.parse().map(Self::Literal);
        }
        input.parse().map(Self::Type)
    }
}
