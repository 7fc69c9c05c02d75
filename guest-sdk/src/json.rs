//! Values to JSON text. What JSON cannot hold is an error, never silently `null`.

use std::fmt;

use serde::ser::{self, Serialize};

/// A value that JSON cannot hold, and where in the value it is.
#[derive(Debug)]
pub(crate) struct NotJson {
    /// Innermost first.
    path: Vec<String>,
    reason: String,
}

pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, NotJson> {
    value.serialize(Finite)?;
    serde_json::to_string(value).map_err(ser::Error::custom)
}

impl NotJson {
    pub(crate) fn within(mut self, field: impl fmt::Display) -> Self {
        self.path.push(field.to_string());
        self
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, field) in self.path.iter().rev().enumerate() {
            write!(f, "{}{field}", if depth > 0 { "." } else { "" })?;
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.reason)
    }
}

impl std::error::Error for NotJson {}

impl ser::Error for NotJson {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self {
            path: Vec::new(),
            reason: reason.to_string(),
        }
    }
}

/// A serializer that writes nothing and refuses floats that are not finite.
///
/// `serde_json` writes those as `null`, and offers no switch and no hook to notice it: its formatter
/// cannot tell such a `null` from that of an `Option`. So values are walked once before they are written.
struct Finite;

fn check(value: f64) -> Result<(), NotJson> {
    if value.is_finite() {
        return Ok(());
    }
    Err(ser::Error::custom(format_args!(
        "JSON cannot hold the number {value}"
    )))
}

macro_rules! always_fine {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, _: $type) -> Result<(), NotJson> { Ok(()) })*
    };
}

impl ser::Serializer for Finite {
    type Ok = ();
    type Error = NotJson;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Entries;
    type SerializeStruct = Finite;
    type SerializeStructVariant = Finite;

    always_fine!(
        serialize_bool: bool, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_unit_struct: &'static str
    );

    fn serialize_f32(self, value: f32) -> Result<(), NotJson> {
        check(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), NotJson> {
        check(value)
    }

    fn serialize_none(self) -> Result<(), NotJson> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), NotJson> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), NotJson> {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), NotJson> {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), NotJson> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), NotJson> {
        value.serialize(self).map_err(|error| error.within(variant))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, NotJson> {
        Ok(Items(0))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items, NotJson> {
        Ok(Items(0))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items, NotJson> {
        Ok(Items(0))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Items, NotJson> {
        Ok(Items(0))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, NotJson> {
        Ok(Entries(0))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Finite, NotJson> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Finite, NotJson> {
        Ok(self)
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Result<(), NotJson> {
        Ok(())
    }
}

/// The elements of a sequence; counts them, so that an error can say which it was.
struct Items(usize);

impl Items {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        value.serialize(Finite).map_err(|error| error.within(self.0))?;
        self.0 += 1;
        Ok(())
    }
}

impl ser::SerializeSeq for Items {
    type Ok = ();
    type Error = NotJson;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        self.item(value)
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

impl ser::SerializeTuple for Items {
    type Ok = ();
    type Error = NotJson;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        self.item(value)
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

impl ser::SerializeTupleStruct for Items {
    type Ok = ();
    type Error = NotJson;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        self.item(value)
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

impl ser::SerializeTupleVariant for Items {
    type Ok = ();
    type Error = NotJson;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        self.item(value)
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

/// The entries of a map. Its keys are left to `serde_json`, which refuses what cannot be one.
struct Entries(usize);

impl ser::SerializeMap for Entries {
    type Ok = ();
    type Error = NotJson;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), NotJson> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        value
            .serialize(Finite)
            .map_err(|error| error.within(format_args!("entry {}", self.0)))?;
        self.0 += 1;
        Ok(())
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

impl ser::SerializeStruct for Finite {
    type Ok = ();
    type Error = NotJson;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), NotJson> {
        value.serialize(Finite).map_err(|error| error.within(key))
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

impl ser::SerializeStructVariant for Finite {
    type Ok = ();
    type Error = NotJson;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), NotJson> {
        value.serialize(Finite).map_err(|error| error.within(key))
    }

    fn end(self) -> Result<(), NotJson> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use std::collections::BTreeMap;

    #[derive(Serialize)]
    struct Order {
        id: &'static str,
        prices: Vec<f64>,
        shape: Shape,
    }

    #[derive(Serialize)]
    enum Shape {
        Unit,
        One(f32),
        Two(u8, f64),
        Named { length: Option<f64> },
    }

    fn order(shape: Shape) -> Order {
        Order {
            id: "1",
            prices: vec![1.5],
            shape,
        }
    }

    #[test]
    fn finite_values_are_written_as_serde_json_does() {
        for shape in [
            Shape::Unit,
            Shape::One(0.5),
            Shape::Two(1, 2.0),
            Shape::Named { length: None },
        ] {
            let order = order(shape);
            assert_eq!(to_json(&order).unwrap(), serde_json::to_string(&order).unwrap());
        }
    }

    #[test]
    fn floats_that_json_cannot_hold_are_errors_that_say_where() {
        let nan = |shape| to_json(&order(shape)).unwrap_err().to_string();
        assert_eq!(
            nan(Shape::One(f32::NAN)),
            "shape.One: JSON cannot hold the number NaN"
        );
        assert_eq!(
            nan(Shape::Two(1, f64::INFINITY)),
            "shape.1: JSON cannot hold the number inf"
        );
        assert_eq!(
            nan(Shape::Named {
                length: Some(f64::NEG_INFINITY)
            }),
            "shape.length: JSON cannot hold the number -inf"
        );
        let prices = Order {
            prices: vec![0.0, f64::NAN],
            ..order(Shape::Unit)
        };
        assert_eq!(
            to_json(&prices).unwrap_err().to_string(),
            "prices.1: JSON cannot hold the number NaN"
        );
        assert!(to_json(&f64::NAN).is_err());
        assert!(to_json(&BTreeMap::from([("a", f64::NAN)])).is_err());
    }

    #[test]
    fn keys_that_json_cannot_have_are_errors() {
        assert!(to_json(&BTreeMap::from([((1, 2), 3)])).is_err());
    }
}
