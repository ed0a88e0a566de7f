//go:build race

package place_test

// simulatedHosts is lower with the race detector, which makes placement thirty times as slow.
const simulatedHosts = 300
