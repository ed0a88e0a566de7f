//go:build moraine_eager

package lead

// eager makes a leader propose commands above its cluster's feature level. Servers of earlier
// builds must survive that mistake by stopping. Only the tests of upgrades build it
// (integration.TestOldBuildStopsAtAnUnknownCommand).
const eager = true
