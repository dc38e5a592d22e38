//! Kernel features of this host, found by probing, and their fallbacks.
//!
//! Nothing depends on the version: distributions backport, and containers restrict. Each module that has a
//! fallback asks here which way to take, and tests choose it by [`Lacking`].

mod page;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use coffer_wire::node::KernelFeature;

pub use page::page;
pub use table::{Feature, KNOWN_HOSTS, KnownHost, Need, Row, TABLE};

/// Features to treat as missing, as if the kernel lacked them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking(BTreeSet<Feature>);

impl Lacking {
    pub fn contains(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }
}

impl FromIterator<Feature> for Lacking {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        Self(features.into_iter().collect())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kernel feature `{0}`; docs/kernels.md lists the names")]
pub struct UnknownFeature(String);

/// Names with commas between them, as in `overlay_detached,cgroup_kill`.
impl FromStr for Lacking {
    type Err = UnknownFeature;

    fn from_str(names: &str) -> Result<Self, UnknownFeature> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| Feature::named(name).ok_or_else(|| UnknownFeature(name.to_string()))).collect()
    }
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|feature| feature.name()).collect();
        f.write_str(&names.join(","))
    }
}

/// The result of probing each feature.
#[derive(Debug, Clone)]
pub(crate) struct Features {
    lacking: Lacking,
    /// With the kernel's message, or the node's.
    missing: BTreeMap<Feature, String>,
}

impl Features {
    /// All features, except those configured as missing.
    pub(crate) fn all_but(lacking: &Lacking) -> Self {
        let missing =
            lacking.0.iter().map(|&feature| (feature, "it is turned off by COFFER_KERNEL_LACKS".into()));
        Self { lacking: lacking.clone(), missing: missing.collect() }
    }

    /// Notes that this kernel lacks a feature, and why that is known.
    pub(crate) fn lack(&mut self, feature: Feature, why: impl Into<String>) {
        if !self.lacking.contains(feature) {
            self.missing.insert(feature, why.into());
        }
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        !self.missing.contains_key(&feature)
    }

    /// The missing features that every sandbox needs, with the kernel's message.
    pub(crate) fn required_but_missing(&self) -> Vec<(Feature, &str)> {
        let required = |feature: &Feature| feature.row().need == Need::Required;
        self.missing.iter().filter(|(feature, _)| required(feature)).map(|(&f, why)| (f, &**why)).collect()
    }

    /// Missing features, for logs: those with fallbacks and those that users will notice.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&'static Row, &str)> {
        self.missing.iter().map(|(feature, why)| (feature.row(), &**why))
    }

    /// All of it, for the server.
    pub(crate) fn report(&self) -> Vec<KernelFeature> {
        TABLE
            .iter()
            .map(|row| {
                let missing = self.missing.get(&row.feature).cloned();
                let without = missing.as_ref().map(|_| row.without.to_string());
                KernelFeature { name: row.name.into(), present: missing.is_none(), why: missing, without }
            })
            .collect()
    }
}

/// A host that cannot run sandboxes, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable(Vec<(Feature, String)>);

impl Unusable {
    pub(crate) fn of(features: &Features) -> Option<Self> {
        let missing = features.required_but_missing();
        let owned = || missing.iter().map(|(feature, why)| (*feature, (*why).to_string())).collect();
        (!missing.is_empty()).then(|| Self(owned()))
    }
}

impl std::error::Error for Unusable {}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        write!(f, "this host (Linux {release}) cannot run sandboxes")?;
        for (feature, why) in &self.0 {
            let Row { name, since, used_for, fix, .. } = feature.row();
            write!(
                f,
                "\n  {name} is missing: {why}\n    needed for: {used_for} (Linux {since})\n    fix: {fix}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_feature_once_in_order() {
        let features: Vec<_> = TABLE.iter().map(|row| row.feature).collect();
        let mut sorted = features.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(features, sorted);
        // The last variant: a variant added after it without a row fails here.
        assert_eq!(features.len(), Feature::Criu as usize + 1);
        let names: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }

    #[test]
    fn names_are_read_back_as_written() {
        let lacking: Lacking = "cgroup_kill, overlay_detached,".parse().unwrap();
        assert_eq!(lacking.to_string(), "overlay_detached,cgroup_kill");
        assert_eq!(lacking.to_string().parse(), Ok(lacking));
        assert_eq!("".parse(), Ok(Lacking::default()));
        assert_eq!("overlay".parse::<Lacking>(), Err(UnknownFeature("overlay".into())));
    }

    #[test]
    fn only_required_features_make_a_host_unusable() {
        let mut features = Features::all_but(&Lacking::from_iter([Feature::CgroupKill]));
        features.lack(Feature::OverlayAppend, "EINVAL");
        assert!(!features.has(Feature::CgroupKill) && !features.has(Feature::OverlayAppend));
        assert_eq!(Unusable::of(&features), None);
        features.lack(Feature::OverlayMappedLayers, "EINVAL (no such option)");
        let unusable = Unusable::of(&features).unwrap().to_string();
        assert!(unusable.contains("overlay_mapped_layers is missing: EINVAL (no such option)"), "{unusable}");
        assert!(unusable.contains("fix: boot Linux 5.19"), "{unusable}");
    }
}
