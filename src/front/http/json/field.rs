//! What reading any protobuf message from JSON takes: fields by number, each once, and integers in
//! all their spellings.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Unexpected, Visitor};

/// A protobuf message that can be read field by field. `number` is the field's number.
pub(super) trait Fields: Default {
    const NAME: &'static str;
    const FIELDS: &'static [&'static str];

    fn number(name: &str) -> Option<u8>;

    fn read<'de, A: MapAccess<'de>>(&mut self, number: u8, map: &mut A) -> Result<(), A::Error>;
}

/// A message in its JSON form.
pub(super) struct Message<T>(pub(super) T);

impl<'de, T: Fields> Deserialize<'de> for Message<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor(PhantomData)).map(Self)
    }
}

struct MessageVisitor<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for MessageVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object ({})", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut message = T::default();
        let mut seen = 0_u32;
        while let Some(FieldName(name)) = map.next_key()? {
            let number =
                T::number(&name).ok_or_else(|| A::Error::unknown_field(&name, T::FIELDS))?;
            let bit = 1 << number;
            if seen & bit != 0 {
                return Err(A::Error::custom(format_args!("field {name:?} is given twice")));
            }
            seen |= bit;
            // serde_json finds the place at the end of the text and keeps it there.
            message
                .read(number, &mut map)
                .map_err(|error| A::Error::custom(format_args!("{name}: {error}")))?;
        }
        Ok(message)
    }
}

#[derive(serde::Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value, or its default for `null`.
pub(super) fn or_default<'de, T, A>(map: &mut A) -> Result<T, A::Error>
where
    T: Deserialize<'de> + Default,
    A: MapAccess<'de>,
{
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

/// A repeated field of messages.
pub(super) fn messages<'de, T: Fields, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    let list: Vec<Message<T>> = or_default(map)?;
    Ok(list.into_iter().map(|message| message.0).collect())
}

/// A `uint32`.
pub(super) fn narrow<E: serde::de::Error>(integer: Integer) -> Result<u32, E> {
    let wide = integer.0;
    u32::try_from(wide)
        .map_err(|_| E::invalid_value(Unexpected::Unsigned(wide), &"a number below 4294967296"))
}

/// A `uint64`: `5`, `"5"` or `5.0`.
#[derive(Clone, Copy, Default)]
pub(super) struct Integer(pub(super) u64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor).map(Self)
    }
}

struct IntegerVisitor;

impl Visitor<'_> for IntegerVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not negative")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be whole and within 0 to 2^53, where the conversion is exact"
    )]
    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<u64, E> {
        const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
        if number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number) {
            Ok(number as u64)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        // `parse` would take "+5", which JSON does not know.
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|_| is_digits)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}
