//! Enums with stored names.

/// Gives an enum that derives strum's `EnumString`, `IntoStaticStr` (with `const_into_str`) and `VariantArray` the three
/// functions by which the rest of the code uses its names.
#[macro_export]
macro_rules! names {
    ($($name:ty),+ $(,)?) => {$(
        impl $name {
            pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

            /// The name, as stored and shown.
            pub const fn as_str(self) -> &'static str {
                self.into_str()
            }

            /// The value of that name.
            pub fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}
