//go:build moraine_level2

package moraine

// FeatureLevel is that of an earlier release: a build with the tag moraine_level2
// begins clusters at this level, announces it to the other servers, and proposes
// nothing past it. Its state machine is this build's, though, and knows all
// commands: what a build does with one that it does not know,
// metadata/state.TestUnknownCommandStops says. The test of rolling upgrades is made
// with it (integration.TestRollingUpgrade).
const FeatureLevel = 2
