//go:build moraine_eager

package lead

// eager makes a leader that proposes what is past the feature level of its cluster: the
// mistake that servers of earlier builds must survive, by stopping. The tests of upgrades
// alone build it (integration.TestOldBuildStopsAtAnUnknownCommand).
const eager = true
