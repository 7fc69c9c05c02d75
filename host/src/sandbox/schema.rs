//! JSON Schemas of inputs and payloads, checked as strictly as guests read.

use jsonschema::{Keyword, ValidationError, Validator};
use serde_json::{Map, Number, Value, json};

/// A compiled JSON Schema.
pub struct Schema {
    pub json: Value,
    validator: Validator,
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.json.fmt(f)
    }
}

/// A value that does not fit its schema: every mismatch, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct SchemaError(pub Vec<String>);

/// More than this many mismatches help nobody.
const MAX_MISMATCHES: usize = 10;

impl Schema {
    /// # Errors
    /// When it is no JSON Schema.
    pub fn compile(json: Value) -> Result<Self, String> {
        let validator = jsonschema::options()
            .with_keyword("format", |_: &Map<String, Value>, format: &Value, _| {
                Ok(Box::new(Format::new(format)) as Box<dyn for<'i> Keyword<'i>>)
            })
            .build(&json)
            .map_err(|error| error.to_string())?;
        Ok(Self { json, validator })
    }

    /// # Errors
    /// When the value does not fit.
    pub fn check(&self, value: &Value) -> Result<(), SchemaError> {
        let mismatches: Vec<_> = self
            .validator
            .iter_errors(value)
            .take(MAX_MISMATCHES)
            .map(|error| match error.instance_path().to_string() {
                path if path.is_empty() => error.to_string(),
                path => format!("{path}: {error}"),
            })
            .collect();
        match mismatches.is_empty() {
            true => Ok(()),
            false => Err(SchemaError(mismatches)),
        }
    }
}

/// What a `format` asks for. To JSON Schema it is a remark, and `1.0` an integer; to a guest it is the width of a
/// number, and whoever writes `1.0` writes a float.
enum Format {
    /// From the first to the last, by format.
    Integer(String, i128, i128),
    /// Wider than numbers are read here: past 64 bits their digits are not known, only about how large they are.
    WideInteger(String, f64, f64),
    /// A float of 32 bits, to which larger numbers would be infinite.
    Float,
    /// Texts: a date, an address.
    Text(String, Option<Validator>),
}

impl Format {
    fn new(format: &Value) -> Self {
        let format = format.as_str().unwrap_or_default().to_owned();
        let (from, to): (i128, i128) = match format.as_str() {
            "int8" => (i8::MIN.into(), i8::MAX.into()),
            "int16" => (i16::MIN.into(), i16::MAX.into()),
            // Pointers have 32 bits in guests, and so have `isize` and `usize`.
            "int32" | "int" => (i32::MIN.into(), i32::MAX.into()),
            "int64" => (i64::MIN.into(), i64::MAX.into()),
            "uint8" => (0, u8::MAX.into()),
            "uint16" => (0, u16::MAX.into()),
            "uint32" | "uint" => (0, u32::MAX.into()),
            "uint64" => (0, u64::MAX.into()),
            "int128" => return Self::WideInteger(format, i128::MIN as f64, i128::MAX as f64),
            "uint128" => return Self::WideInteger(format, 0.0, u128::MAX as f64),
            "float" => return Self::Float,
            _ => {
                let validator = jsonschema::options()
                    .should_validate_formats(true)
                    .with_format("ip", |text: &str| text.parse::<std::net::IpAddr>().is_ok())
                    .build(&json!({ "format": format }));
                return Self::Text(format, validator.ok());
            }
        };
        Self::Integer(format, from, to)
    }

    fn fits(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Integer(_, from, to), Value::Number(number)) => {
                number.as_i128().is_some_and(|n| (*from..=*to).contains(&n))
            }
            (Self::WideInteger(_, from, to), Value::Number(number)) => {
                let fits = |n: f64| (*from..=*to).contains(&n);
                (number.as_i128().is_some() || past_64_bits(number)) && number.as_f64().is_some_and(fits)
            }
            (Self::Float, Value::Number(number)) => number.as_f64().is_some_and(|n| (n as f32).is_finite()),
            (Self::Text(_, Some(validator)), Value::String(_)) => validator.is_valid(value),
            // Whether it may be of another type is up to `type`.
            _ => true,
        }
    }
}

/// Whether an integer of this size is read as a float.
fn past_64_bits(number: &Number) -> bool {
    number
        .as_f64()
        .is_some_and(|n| n >= u64::MAX as f64 || n <= i64::MIN as f64)
}

impl<'i> Keyword<'i> for Format {
    fn validate(&self, value: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.fits(value) {
            return Ok(());
        }
        Err(ValidationError::custom(match self {
            Self::Integer(format, from, to) => format!(
                "{value} is no `{format}`, an integer from {from} to {to}, without fraction and exponent"
            ),
            Self::WideInteger(format, ..) => {
                format!("{value} is no `{format}`, an integer without fraction and exponent")
            }
            Self::Float => format!("{value} is no `float`: too large for 32 bits"),
            Self::Text(format, _) => format!("{value} is no `{format}`"),
        }))
    }

    fn is_valid(&self, value: &'i Value) -> bool {
        self.fits(value)
    }
}
