//go:build moraine_level2

package moraine

// FeatureLevel is that of an earlier release. A build with the tag moraine_level2 begins
// clusters at this level and announces it to the other servers. It proposes nothing past it,
// and does not know later commands (metadata/state/known_2.go). The tests of rolling upgrades
// use it (integration/upgrade_test.go).
const FeatureLevel = 2
