//go:build moraine_level2

package moraine

// FeatureLevel is that of an earlier release: a build with the tag moraine_level2
// begins clusters at this level, announces it to the other servers, proposes nothing past
// it, and does not know the commands that came later (metadata/state/known_2.go). The tests
// of rolling upgrades are made with it (integration/upgrade_test.go).
const FeatureLevel = 2
