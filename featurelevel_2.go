//go:build moraine_level2

package moraine

// FeatureLevel is that of an earlier release: a build with the tag moraine_level2
// begins clusters at this level, and does not know the commands past it. The test
// of rolling upgrades is made with it (integration.TestRollingUpgrade).
const FeatureLevel = 2
