//! Forms as JSON: their values are texts, and a JSON Schema says which of them are meant as something else.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of a form, each with its values in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Form(BTreeMap<String, Vec<String>>);

/// What a schema lets a field be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Types<'s> {
    text: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    list: bool,
    items: Vec<&'s Value>,
}

impl Form {
    pub fn add(&mut self, name: String, value: String) {
        self.0.entry(name).or_default().push(value);
    }

    /// The form as a JSON object. A field is a text, or a list of them where it is there several times; where `schema`
    /// has integers, numbers or booleans for it and no texts, and the text is exactly one, it is that. A field that the
    /// schema wants as a list is one also where it is there once.
    pub fn to_json(&self, schema: Option<&Value>) -> String {
        let parts = schema.map_or_else(Vec::new, |root| together([root], root, |_| true));
        let fields = self.0.iter().map(|(name, values)| {
            let types = schema.map(|root| Types::of(fields(&parts, name), root));
            let types = types.unwrap_or_default();
            let name = Value::from(name.as_str());
            match values.as_slice() {
                [value] if types.text || !types.list => format!("{name}:{}", types.read(value)),
                values => {
                    let items = schema
                        .map(|root| Types::of(types.items, root))
                        .unwrap_or_default();
                    let values: Vec<_> = values.iter().map(|value| items.read(value)).collect();
                    format!("{name}:[{}]", values.join(","))
                }
            }
        });
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }
}

impl<'s> Types<'s> {
    /// Of what is one of these.
    fn of(schemas: Vec<&'s Value>, root: &'s Value) -> Self {
        let mut types = Self::default();
        for schema in together(schemas, root, |schema| schema.get("type").is_none()) {
            let named = match &schema["type"] {
                Value::String(name) => vec![name.as_str()],
                Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                _ => {
                    // It is anything, or one of some values, which of a form are texts.
                    types.text |= further(schema, root).next().is_none();
                    continue;
                }
            };
            for name in named {
                match name {
                    "string" => types.text = true,
                    "integer" => types.integer = true,
                    "number" => types.number = true,
                    "boolean" => types.boolean = true,
                    "array" => {
                        types.list = true;
                        types.items.extend(schema.get("items"));
                    }
                    _ => {}
                }
            }
        }
        types
    }

    /// A value of the form as JSON.
    fn read(&self, text: &str) -> String {
        let is_boolean = self.boolean && matches!(text, "true" | "false");
        if !self.text && (is_boolean || self.is_number(text)) {
            // As it is: reading and writing it anew could change it.
            return text.to_owned();
        }
        Value::from(text).to_string()
    }

    fn is_number(&self, text: &str) -> bool {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) || text.ends_with(char::is_whitespace) {
            return false;
        }
        let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
        // What begins like a number and is JSON is one.
        (self.number || (self.integer && whole)) && serde_json::from_str::<&RawValue>(text).is_ok()
    }
}

/// The schemas that stand for this one together: what it refers to, its alternatives and its parts.
fn further<'s>(schema: &'s Value, root: &'s Value) -> impl Iterator<Item = &'s Value> {
    let referred = schema["$ref"]
        .as_str()
        .and_then(|path| root.pointer(path.strip_prefix('#')?));
    let parts = ["anyOf", "oneOf", "allOf"].into_iter();
    let parts = parts.filter_map(|word| schema[word].as_array()).flatten();
    referred.into_iter().chain(parts)
}

/// These schemas and those that they lead to, each once, since one may name itself. From one it goes on where `follow`
/// says so.
fn together<'s>(
    schemas: impl IntoIterator<Item = &'s Value>,
    root: &'s Value,
    follow: impl Fn(&Value) -> bool,
) -> Vec<&'s Value> {
    let mut seen = HashSet::new();
    let mut next: Vec<_> = schemas.into_iter().collect();
    let mut all = Vec::new();
    while let Some(schema) = next.pop() {
        if seen.insert(std::ptr::from_ref(schema)) {
            all.push(schema);
            if follow(schema) {
                next.extend(further(schema, root));
            }
        }
    }
    all
}

/// What the parts of a schema say of a field.
fn fields<'s>(parts: &[&'s Value], name: &str) -> Vec<&'s Value> {
    let named: Vec<_> = parts
        .iter()
        .filter_map(|part| part["properties"].get(name))
        .collect();
    if !named.is_empty() {
        return named;
    }
    let rest = parts.iter().filter_map(|part| part.get("additionalProperties"));
    rest.filter(|rest| rest.is_object()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(fields: &[(&str, &str)]) -> Form {
        let mut form = Form::default();
        for (name, value) in fields {
            form.add((*name).to_owned(), (*value).to_owned());
        }
        form
    }

    #[test]
    fn a_text_is_what_the_schema_says_where_it_is_exactly_that() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": { "type": "integer", "format": "uint128" },
                "maybe": { "type": ["integer", "null"] },
                "either": { "anyOf": [{ "type": "integer" }, { "type": "string" }] },
                "ratio": { "$ref": "#/$defs/Ratio" },
                "yes": { "type": "boolean" },
                "name": { "type": "string" },
                "any": true,
                "choice": { "enum": ["1", "2"] },
                "list": { "type": "array", "items": { "type": "integer" } }
            },
            "$defs": { "Ratio": { "anyOf": [{ "type": "number" }, { "type": "null" }] } }
        });
        let cases = [
            ("n", "7", "7"),
            ("n", "-7", "-7"),
            (
                "n",
                "340282366920938463463374607431768211455",
                "340282366920938463463374607431768211455",
            ),
            ("n", "007", "\"007\""),
            ("n", "7 ", "\"7 \""),
            ("n", "+7", "\"+7\""),
            ("n", "7.0", "\"7.0\""),
            ("n", "7,\"x\":1", "\"7,\\\"x\\\":1\""),
            ("n", "", "\"\""),
            ("n", "true", "\"true\""),
            ("maybe", "7", "7"),
            ("either", "7", "\"7\""),
            ("ratio", "7.50", "7.50"),
            ("ratio", "1e3", "1e3"),
            ("ratio", "NaN", "\"NaN\""),
            ("yes", "true", "true"),
            ("yes", "on", "\"on\""),
            ("yes", "1", "\"1\""),
            ("name", "7", "\"7\""),
            ("any", "7", "\"7\""),
            ("choice", "1", "\"1\""),
            ("list", "7", "[7]"),
            ("list", "x", "[\"x\"]"),
            ("unknown", "7", "\"7\""),
        ];
        for (name, value, expected) in cases {
            let form = form(&[(name, value)]);
            assert_eq!(form.to_json(Some(&schema)), format!("{{\"{name}\":{expected}}}"));
            let text = form.to_json(None);
            assert_eq!(text, json!({ name: value }).to_string());
        }
        let several = form(&[("list", "1"), ("n", "2"), ("list", "x"), ("n", "3")]);
        assert_eq!(
            several.to_json(Some(&schema)),
            r#"{"list":[1,"x"],"n":["2","3"]}"#
        );
        assert_eq!(form(&[]).to_json(Some(&schema)), "{}");
    }

    #[test]
    fn fields_of_parts_and_of_any_name_are_found() {
        let parts = json!({
            "allOf": [{ "$ref": "#/$defs/Part" }],
            "properties": { "own": { "type": "boolean" } },
            "$defs": { "Part": { "properties": { "n": { "type": "integer" } } } }
        });
        let filled = form(&[("n", "1"), ("own", "false")]);
        assert_eq!(filled.to_json(Some(&parts)), r#"{"n":1,"own":false}"#);
        let map = json!({ "type": "object", "additionalProperties": { "type": "number" } });
        assert_eq!(form(&[("x", "1.5")]).to_json(Some(&map)), r#"{"x":1.5}"#);
        let itself = json!({ "properties": { "n": { "$ref": "#/properties/n" } } });
        assert_eq!(form(&[("n", "1")]).to_json(Some(&itself)), r#"{"n":"1"}"#);
        let branching = json!({ "$ref": "#", "anyOf": [{ "$ref": "#" }] });
        assert_eq!(form(&[("n", "1")]).to_json(Some(&branching)), r#"{"n":"1"}"#);
    }
}
