//go:build race

package place_test

// simulatedHosts is fewer with the race detector, which makes placing thirty times
// as slow.
const simulatedHosts = 300
